"""The deployer `fireworks`, against a stand-in for the REST calls by which a model is uploaded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.deploy.deployments import Deployments
from evsys_sdk.deploy.ship import ship
from evsys_sdk.deploy.source import find_source
from evsys_sdk.errors import DataError

from ..http_stand_in import JsonHandler, LoopbackServer

KEY = "fw_" + "a1B2" * 6
MODELS = "/v1/accounts/team/models"


class Service:
    """What was made and put, and what was asked for with which key."""

    def __init__(self) -> None:
        self.models: dict[str, Any] = {}
        self.files: dict[str, bytes] = {}
        self.keys: dict[str, str] = {}
        self.valid: list[str] = []
        self.refuses = ""
        self.forgets = ""
        """A file for which no address is signed."""
        self.url = ""

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        if self.refuses and self.refuses in path:
            return 400, {"error": {"message": f"refused, and your key is {KEY}"}}
        if method == "PUT":
            self.files[path.removeprefix("/signed/")] = body
            return 200, {}
        fields = json.loads(body) if body else {}
        if path == MODELS:
            self.models[fields["modelId"]] = fields["model"]
            return 200, {"name": f"accounts/team/models/{fields['modelId']}"}
        if path.endswith(":getUploadEndpoint"):
            names = [name for name in fields["filenameToSize"] if name != self.forgets]
            return 200, {"filenameToSignedUrls": {name: f"{self.url}/signed/{name}" for name in names}}
        if path.endswith(":validateUpload"):
            self.valid.append(path)
            return 200, {}
        return 404, {}


@pytest.fixture
def service() -> Iterator[Service]:
    fake = Service()

    class Handler(JsonHandler):
        def _serve(self) -> None:
            fake.keys[self.path] = self.headers.get("authorization", "")
            status, answer = fake.answer(self.command, self.path, self.read_body())
            self.send_json(answer, status)

        do_GET = do_POST = do_PUT = _serve

    with LoopbackServer(Handler) as http:
        fake.url = http.url
        yield fake


@pytest.fixture
def params(service: Service, as_adapter: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("FIREWORKS_API_KEY", KEY)
    for config in Path("outputs/routing").glob("*/checkpoints/*/sampler/adapter_config.json"):
        layers = [f"model.layers.{n}.self_attn.{kind}" for n in range(2) for kind in ("q_proj", "v_proj")]
        about = {"peft_type": "LORA", "r": 8, "lora_alpha": 4, "target_modules": layers}
        config.write_text(json.dumps(about), "utf-8")
    base_model = "accounts/fireworks/models/some"
    return {
        "account": "team",
        "model": "colours",
        "base_model": base_model,
        "base": str(as_adapter),
        "url": service.url,
    }


def test_the_adapter_becomes_a_model_of_the_account(service: Service, params: dict[str, Any]) -> None:
    deployment = ship(find_source("routing"), "fireworks", name="hosted", params=params)
    details = {"baseModel": params["base_model"], "r": 8, "targetModules": ["q_proj", "v_proj"]}
    assert service.models == {"colours": {"kind": "HF_PEFT_ADDON", "peftDetails": details}}
    assert service.files.keys() == deployment.files.keys()
    template = json.loads(service.files["fireworks.json"])["conversation_config"]["args"]["template"]
    assert template == "{{ messages }}"
    assert service.valid == [f"{MODELS}/colours:validateUpload"]
    assert deployment.location == "accounts/team/models/colours"
    assert service.keys[MODELS] == f"Bearer {KEY}"
    assert service.keys["/signed/README.md"] == "", "a signed address is not told the key"


@pytest.mark.parametrize("refuses", ["/models", ":getUploadEndpoint", "adapter_model", ":validateUpload"])
def test_what_is_refused_on_the_way_is_not_live(service: Service, params: dict[str, Any], refuses: str) -> None:
    service.refuses = refuses
    with pytest.raises(DataError, match="refused") as caught:
        ship(find_source("routing"), "fireworks", name="hosted", params=params)
    assert KEY not in str(caught.value)
    assert Deployments.read().all == []


def test_a_file_without_an_address_is_named(service: Service, params: dict[str, Any]) -> None:
    service.forgets = "tokenizer.json"
    with pytest.raises(DataError, match=r"no address for 'tokenizer\.json'"):
        ship(find_source("routing"), "fireworks", name="hosted", params=params)


def test_a_missing_key_is_reported_before_anything_is_built(
    service: Service, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FIREWORKS_API_KEY")
    with pytest.raises(DataError, match="FIREWORKS_API_KEY"):
        ship(find_source("routing"), "fireworks", name="hosted", params=params)
    assert service.keys == {}


def test_a_rank_that_the_service_does_not_take_is_refused(service: Service, params: dict[str, Any]) -> None:
    for config in Path("outputs/routing").glob("*/checkpoints/*/sampler/adapter_config.json"):
        config.write_text(json.dumps({"peft_type": "LORA", "r": 128, "lora_alpha": 4}), "utf-8")
    with pytest.raises(DataError, match="rank 128"):
        ship(find_source("routing"), "fireworks", name="hosted", params=params)
