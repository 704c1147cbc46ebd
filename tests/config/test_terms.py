"""The key `train.terms`: entries, errors, and the hash of configurations with and without it."""

from flbench.config.resolve import resolve
from flbench.config.sources import from_overrides
from flbench.core.registry import TERMS


def resolved(text):
    return resolve([from_overrides([f"train.terms={text}"])])[0]


def test_a_term_is_given_by_its_name_or_with_keys():
    one, two = resolved("[focal, {name: focal, gamma: 3, weight: 0.5, instead: true}]").train.terms

    assert (one.name, one.gamma, one.weight, one.instead) == ("focal", 2.0, 1.0, False)
    assert (two.name, two.gamma, two.weight, two.instead) == ("focal", 3.0, 0.5, True)


def test_every_registered_term_has_the_keys_of_its_configuration():
    for name in TERMS.load():
        [entry] = resolved(f"[{name}]").train.terms
        term = TERMS.find(name)(**entry.model_dump(exclude={"name", "instead"}))

        assert term.weight == 1.0
        for key in set(type(entry).model_fields) - {"name", "instead"}:
            assert getattr(term, key) == getattr(entry, key)


def test_terms_count_for_the_hash():
    config = resolve([])[0]

    assert config.hash() == resolved("[]").hash() != resolved("[focal]").hash()
    assert resolved("[{name: focal, gamma: 1}]").hash() != resolved("[focal]").hash()
