"""The run-time type checker of the tests: ints pass for floats, as in ordinary Python."""

from beartype import BeartypeConf, beartype

checker = beartype(conf=BeartypeConf(is_pep484_tower=True))
