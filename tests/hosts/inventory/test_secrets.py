"""Secrets in an inventory or an address: in no error, no difference and no line that is shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosts.errors import InventoryError
from hosts.inventory.load import load_inventory
from hosts.inventory.modes import diff_modes
from remote.shared.redact import is_secret, log_line, redacted, without_credentials
from tests.hostile import examples

SECRET = "s3cr3t-value"
HOST = "defaults: {model: /m, layers: [1]}\n"


@pytest.mark.parametrize(
    "text",
    [
        f"hosts: {{gpu1: {{env: {{HF_TOKEN: [{SECRET}]}}}}}}",
        f"hosts: {{gpu1: {{env: {SECRET}}}}}",
        f"hosts: {{gpu1: {{secrets: {SECRET}}}}}",
        f"hosts: {{gpu1: {{secrets: [[{SECRET}]]}}}}",
        f"hosts: {{gpu1: {{notify: {{webhook: [{SECRET}]}}}}}}",
        f"hosts: {{gpu1: {{notify: {SECRET}}}}}",
        f"hosts: {{gpu1: {{modes: {{serve: {{env: {{X: {{y: {SECRET}}}}}}}}}}}}}",
        f"nccl: {{NCCL_X: [{SECRET}]}}\nhosts: {{gpu1: {{}}}}",
        f"hosts: {{gpu1: {{gpus: 's3://user:{SECRET}@bucket/'}}}}",
        f"hosts: {{gpu1: {{modes: [{{env: {SECRET}}}]}}}}",
    ],
)
def test_no_error_repeats_the_values_near_secrets(tmp_path: Path, text: str) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(HOST + text + "\n")
    with pytest.raises(InventoryError) as caught:
        load_inventory(path)
    assert SECRET not in str(caught.value) + repr(caught.value.details)
    assert "inventory.yaml" in str(caught.value)


def test_diff_modes_says_that_secrets_differ_and_not_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(
        HOST + "modes:\n"
        f"  one: {{env: {{DB_PWD: {SECRET}1, X: 'https://me:{SECRET}@proxy/', SAME_TOKEN: t}}}}\n"
        f"  two: {{env: {{DB_PWD: {SECRET}2, X: other, SAME_TOKEN: t}}}}\n"
        "hosts: {gpu1: {}}\n"
    )
    found = {
        each.setting: (each.first, each.second) for each in diff_modes(load_inventory(path).hosts["gpu1"], "one", "two")
    }
    assert found == {"$DB_PWD": ("***", "***"), "$X": ("https://***@proxy/", "other")}


@pytest.mark.parametrize(
    "name", ["DB_PWD", "PGPASSWORD", "SMTP_PASS", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "SENTRY_DSN"]
)
def test_names_of_secrets_are_recognised(name: str) -> None:
    assert redacted({name: SECRET}) == {name: "***"}


@pytest.mark.parametrize("name", ["PWD", "OLDPWD", "TOKENIZERS_PARALLELISM", "SGLANG_MAX_NEW_TOKENS", "KEYBOARD"])
def test_names_that_only_sound_like_secrets(name: str) -> None:
    assert not is_secret(name)


def test_urls_in_other_variables_lose_their_credentials() -> None:
    given = {
        "https_proxy": f"http://me:{SECRET}@proxy:3128/a@b",
        "BUCKET": f"https://b/x?X-Amz-Signature={SECRET}&part=2",
    }
    assert redacted(given) == {
        "https_proxy": "http://***@proxy:3128/a@b",
        "BUCKET": "https://b/x?X-Amz-Signature=***&part=2",
    }


def test_log_lines_lose_api_keys_in_every_form_that_sglang_prints() -> None:
    for line in (
        f"server_args=ServerArgs(port=1, api_key='{SECRET}', tp=1)",
        f"{{'admin_api_key': '{SECRET}', 'a': 1}}",
        f'{{"api_key": "{SECRET}"}}',
    ):
        assert SECRET not in log_line(line)
        assert log_line(line)[-1] == line[-1]
    assert log_line("the api is ready, 'key' and all") == "the api is ready, 'key' and all"


secrets = st.text("abcXYZ019._~!$&*+,;=%-", min_size=6, max_size=20).map(lambda text: f"q9{text}9q")


@examples(150)
@given(st.sampled_from(["s3", "http", "https", "ftp", "git+ssh"]), secrets, secrets, st.text(max_size=20))
def test_no_password_of_a_url_survives(scheme: str, user: str, password: str, around: str) -> None:
    url = f"{scheme}://{user}:{password}@host/path"
    assert password not in without_credentials(f"{around} {url} could not be read").removeprefix(around)
