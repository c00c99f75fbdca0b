import json
import random

import pytest

import fuzz
from goldiprox import messages


@pytest.mark.parametrize("reader", fuzz.READERS)
def test_a_short_run(tmp_path, reader):
    assert fuzz.fuzz(reader, 1_500, 0, tmp_path) > 0  # some are sound: the runs reach what lies behind the checks


def test_the_fuzzer_finds_what_is_not_our_error(tmp_path, monkeypatch):
    def careless(path):
        return [json.loads(messages.decode_header(memoryview(path.read_bytes()))[0]["parents"]["split"])]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(fuzz.READERS, "careless", (fuzz.sequence_seed, careless))
    with pytest.raises((ValueError, TypeError, KeyError)):
        fuzz.fuzz("careless", 200, 0, tmp_path)


def test_the_fuzzer_finds_wrong_ids(tmp_path, monkeypatch):
    monkeypatch.setattr(messages, "_check", lambda content, start, digits, end, before: 0)
    with pytest.raises(AssertionError, match="wrong ids"):
        fuzz.fuzz("sequence", 1_500, 0, tmp_path)


def test_changes_that_are_sealed_again_pass_the_checksums(tmp_path):
    original, rng = fuzz.sequence_seed(tmp_path), random.Random(0)
    sealed = 0
    for _ in range(300):
        try:
            messages.decode_header(memoryview(fuzz.seal(fuzz.change_fields(original, rng))))
        except messages.Damage:
            continue
        sealed += 1
    assert sealed > 200
