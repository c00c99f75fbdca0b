"""What is compared with what, and how long each run is."""

from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from goldiprox.compare.methods import Method
from goldiprox.errors import ConfigError, UnknownName
from goldiprox.optim import Schedule, TrainingConfig
from goldiprox.settings import RunConfig

UniformOn = Literal["train", "everything"]
EVALUATIONS = 12
"""Of a run as long as the methods': halves, thirds and quarters of it are evaluated too."""
MAX_BUDGET = 1_000


@dataclass(frozen=True)
class Plan:
    """A comparison.

    Attributes:
        config: Data, models, optimiser, holdout model, batch sizes, machine; its epochs and seed are not used.
        methods: Ways of selecting, side by side against the same uniform runs.
        steps: How long methods train the large model; rounded down to a multiple of `EVALUATIONS`.
        budgets: Of uniform training, in multiples of `steps`; 1 is always among them.
        seeds: A run of each kind for every one.
        schedules: Of the learning rate. With ``cosine`` every run decays it to zero; with ``constant`` the shorter
            uniform runs are the beginnings of the longest.
        uniform_on: What uniform runs train on: ``train``, the side that methods select from; or ``everything``, the
            holdout too, whose labels methods use by way of the holdout model.
        itself: Whether the large model also selects for itself.
        compared: About how many candidates proxy and large model are compared in rank on; 0 for none.
        at_once: How many runs of the large model are branches of one CUDA graph.
        proxies_at_once: Likewise of proxies.
    """

    config: RunConfig = field(default_factory=RunConfig)
    methods: tuple[Method, ...] = (Method(),)
    steps: int = 1200
    budgets: tuple[float, ...] = (0.25, 0.5, 1, 2, 3)
    seeds: tuple[int, ...] = (0, 1, 2)
    schedules: tuple[Schedule, ...] = ("cosine",)
    uniform_on: UniformOn = "train"
    itself: bool = True
    compared: int = 640
    at_once: int = 1
    proxies_at_once: int = 8

    def __post_init__(self):
        if self.steps < EVALUATIONS:
            raise ConfigError(f"--steps {self.steps}: at least {EVALUATIONS} are needed, one for each evaluation")
        if not self.budgets or not all(0 < b <= MAX_BUDGET for b in self.budgets):
            given = ",".join(f"{b:g}" for b in self.budgets)
            raise ConfigError(
                f"--budgets {given}: give positive multiples of --steps, at most {MAX_BUDGET:,}, such as 0.25,0.5,1,2,3"
            )
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ConfigError(f"seeds {self.seeds}: give at least one, and none twice")
        if not self.methods:
            raise ConfigError("there is no method to compare; give one (--method default)")
        names = [m.name for m in self.methods]
        if twice := {n for n in names if names.count(n) > 1}:
            raise ConfigError(f"method {', '.join(sorted(twice))} is given twice")
        for schedule in self.schedules:
            if schedule not in get_args(Schedule):
                raise UnknownName("schedule", schedule, (*get_args(Schedule), "both"))
        if self.uniform_on not in get_args(UniformOn):
            raise UnknownName("--uniform-on", self.uniform_on, get_args(UniformOn))
        for method in self.methods:
            if (candidates := method.candidates or self.config.candidates) < self.config.keep:
                raise ConfigError(
                    f"method {method.name}: cannot keep {self.config.keep} of {candidates} candidates; lower --keep or "
                    f"raise --candidates"
                )
        if min(self.at_once, self.proxies_at_once) < 1:
            raise ConfigError(f"--at-once {self.at_once}: at least 1 is needed")

    @property
    def unit(self) -> int:
        """Steps between evaluations. All lengths are multiples of it, so that all are evaluated at the same steps."""
        return self.steps // EVALUATIONS

    @property
    def method_steps(self) -> int:
        return EVALUATIONS * self.unit

    @property
    def uniform_steps(self) -> list[int]:
        """The lengths of the uniform runs, ascending; the methods' own is among them."""
        return sorted({max(1, round(EVALUATIONS * b)) * self.unit for b in (*self.budgets, 1.0)})

    def training(self, schedule: Schedule) -> TrainingConfig:
        return replace(self.config.training, schedule=schedule)


def quick(plan: Plan) -> Plan:
    """The same in half a minute on one core: to see that it runs."""
    holdout = replace(plan.config.holdout, max_epochs=min(plan.config.holdout.max_epochs, 3), min_steps=0)
    budgets = tuple(b for b in plan.budgets if b <= 2) or (0.5, 2)
    methods = tuple(replace(m, holdout_epochs=m.holdout_epochs and min(m.holdout_epochs, 3)) for m in plan.methods)
    return replace(
        plan,
        config=replace(plan.config, holdout=holdout),
        methods=methods,
        steps=min(plan.steps, 60),
        budgets=budgets,
        seeds=plan.seeds[:2],
        compared=320,
    )


def as_in_the_paper(plan: Plan) -> Plan:
    """With the paper's rule and setting: the highest scores, a constant learning rate, few of many candidates."""
    candidates, keep = (640, 64) if plan.config.data.data == "cinic10" else (320, 32)
    precision, compiled = plan.config.training.precision, plan.config.training.compile
    config = replace(
        plan.config,
        acquisition="reducible_loss",
        candidates=candidates,
        keep=keep,
        dropout=0.0,
        training=TrainingConfig(precision=precision, compile=compiled),
    )
    return replace(plan, config=config, methods=(Method("paper"),), schedules=("constant",))
