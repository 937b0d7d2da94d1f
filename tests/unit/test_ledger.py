"""The ledger is whole, its checks are green, and each of them can turn red."""

import pytest

from course_utils import contrast, ledger

LEDGER = ledger.load()
CHECKED = LEDGER[LEDGER["expects"] != ""]


@pytest.fixture(scope="module")
def judged():
    return ledger.run(LEDGER)


def test_every_row_is_there_once_and_says_what_it_has_to():
    assert LEDGER["id"].is_unique and len(LEDGER) == 61
    assert LEDGER["id"].str.fullmatch(r"[AB]\d+").all()
    for column in ("theme", "claim", "right", "source"):
        assert LEDGER[column].str.strip().astype(bool).all(), column
    assert set(LEDGER["verdict"]) == set(ledger.VERDICTS)
    assert set(LEDGER["status"]) == set(ledger.STATUSES)


def test_rows_that_expect_numbers_have_a_check_and_the_others_none():
    assert set(CHECKED["id"]) == set(ledger.CHECKS)
    assert all(check.__doc__ for check in ledger.CHECKS.values())


def test_every_check_is_green(judged):
    red = judged[judged["state"] == "red"]
    assert red.empty, red[["id", "expects", "found"]].to_string()
    assert (judged["state"] == "green").sum() == len(CHECKED)


@pytest.mark.parametrize("claim", CHECKED["id"])
def test_a_number_off_in_its_last_digit_turns_the_row_red(claim, monkeypatch, judged):
    """The check itself ran above: here its numbers are compared with a statement that is slightly wrong."""
    row = judged.set_index("id").loc[claim]
    found = [float(number) for number in row["found"].split()]

    def check():
        """The numbers that were found."""
        return found

    monkeypatch.setitem(ledger.CHECKS, claim, check)
    wanted = row["expects"].split()
    assert ledger.judged(claim, " ".join(wanted))[2] == "green"
    for place, text in enumerate(wanted):
        step = 10 ** -ledger.decimals(text)
        wrong = [*wanted[:place], f"{float(text) + step:.{ledger.decimals(text)}f}", *wanted[place + 1 :]]
        assert ledger.judged(claim, " ".join(wrong))[2] == "red"
    assert ledger.judged(claim, " ".join(wanted[:-1]))[2] == "red", "a number too many was found"


@pytest.mark.parametrize(
    ("claims", "name", "broken"),
    [
        (
            ("A3", "A8", "A11"),
            "candidate_table",
            lambda s, positive, tau: CANDIDATE_TABLE(s, positive, tau * 1.001),
        ),
        (("A7", "A16"), "nt_xent", lambda a, b, tau: NT_XENT(a, b, tau) * 1.0001),
        (("A12",), "strongest_pull", lambda s, positive: (0.32, 0.95)),
        (("B40",), "clip_loss", lambda image, text, scale: CLIP_LOSS(image, text, 1 / scale)),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_definition_that_is_wrong_turns_its_rows_red(claims, name, broken, monkeypatch):
    monkeypatch.setattr(contrast, name, broken)
    rows = ledger.run(LEDGER[LEDGER["id"].isin(claims)])
    assert (rows["state"] == "red").all(), rows[["id", "found", "state"]]


CANDIDATE_TABLE, NT_XENT, CLIP_LOSS = contrast.candidate_table, contrast.nt_xent, contrast.clip_loss


def test_a_queue_that_forgets_the_newest_turns_its_rows_red(monkeypatch):
    monkeypatch.setattr(ledger.KeyQueue, "order", lambda queue: ORDER(queue).flip(0))
    monkeypatch.setattr(ledger, "ema_update", lambda follower, leader, m: EMA_UPDATE(follower, leader, 1 - m))
    rows = ledger.run(LEDGER[LEDGER["id"].isin(["A20", "B32", "B33"])])
    assert (rows["state"] == "red").all()


ORDER, EMA_UPDATE = ledger.KeyQueue.order, ledger.ema_update


def test_a_claim_has_one_check():
    with pytest.raises(ValueError, match="A3 has a check already: info_nce_is_cross_entropy"):
        ledger.checks("A3")(lambda: [])


def test_a_check_that_breaks_is_a_red_row_and_the_others_go_on(monkeypatch):
    def check():
        """Nothing."""
        raise KeyError("no such record")

    monkeypatch.setitem(ledger.CHECKS, "A3", check)
    rows = ledger.run(LEDGER.query("id in ['A3', 'B27']")).set_index("id")
    assert rows.loc["A3", "state"] == "red" and "KeyError" in rows.loc["A3", "found"]
    assert rows.loc["B27", "state"] == "green"
