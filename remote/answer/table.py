"""The verb `answers`: statistics of a run's answers from this host's ledger. Runs on the host; read-only."""

from __future__ import annotations

from pydantic import ValidationError

from remote.answer.serverfacts import ServerFacts
from remote.context import Context
from remote.shared.messages.answers import AnswersRequest, AnswerSummary, AnswerTable
from remote.shared.messages.run import Answering
from remote.work.known import known
from remote.work.ledger import Ledger

NOT_DETERMINISTIC = (
    "sampling is random: SGLang uses a request's seed only with --enable-deterministic-inference, and the server runs "
    "without that flag"
)
BATCH_VARIES = (
    "answers are greedy, but the server runs without --enable-deterministic-inference: if two logits are nearly "
    "equal, the other requests of the batch may decide"
)


def answers(request: AnswersRequest, context: Context) -> AnswerTable:
    """Return the statistics of the finished records."""
    paths = known(context.workdir, request.run)
    table = AnswerTable()
    if not paths.ledger.exists():
        return table
    with Ledger(paths.ledger, to_read=True) as ledger:
        for text in ledger.told():
            table.count(AnswerSummary.model_validate_json(text))
        servers = [_facts(text) for name, text in ledger.facts().items() if name.startswith("server ")]
    if any(not one.deterministic for one in servers):
        table.deterministic, table.why_not = False, _why(request.run.answers)
    return table


def _why(settings: Answering | None) -> str:
    greedy = settings is not None and (settings.temperature == 0 or settings.top_k == 1)
    return BATCH_VARIES if greedy else NOT_DETERMINISTIC


def _facts(text: str) -> ServerFacts:
    try:
        return ServerFacts.model_validate_json(text)
    except ValidationError:
        return ServerFacts()
