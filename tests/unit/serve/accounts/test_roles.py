"""What an account is refused, in words."""

from __future__ import annotations

from fairlead.serve.accounts import roles


def test_a_refusal_says_what_is_refused_and_who_may() -> None:
    refused = roles.refusal("ann", roles.Action.MACHINE_WRITE)
    assert refused.message.startswith('"ann" may not do this: change what the whole machine shares: images')
    assert refused.hint == "the machine's administrators may; ask them"
    refused = roles.refusal("ann", roles.Action.CONTAINER_RUN)
    assert refused.message == '"ann" may not do this: run and end containers (container.run)'
    assert refused.hint == "a role from developer on in the tenancy may; ask them"


def test_every_action_has_words_of_its_own() -> None:
    words = [roles.TABLE[action].words for action in roles.Action]
    assert len(set(words)) == len(words)
    assert all(words)
