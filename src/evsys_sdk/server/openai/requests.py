"""`POST /inference/v1/generate`: the request by which clients that train ask for tokens."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from ...inference.protocols.chat_completions import Stop
from ...inference.protocols.exchange import ApiRequest, RequestRefused, TextQuery


class GenerateParams(BaseModel):
    """How tokens are drawn, for clients that train."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    n: int = Field(default=1, ge=1, le=128)
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0, le=100)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=-1, ge=-1)
    seed: int | None = None
    stop: Stop | list[Stop] | None = None
    stop_token_ids: list[int] | None = None
    logprobs: int | None = Field(default=None, ge=0)
    """Those of the drawn tokens are always in the answer."""


class GenerateRequest(ApiRequest):
    """`POST /inference/v1/generate`: token ids in, token ids and their log-probabilities out."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: str = Field(min_length=1, max_length=500)
    token_ids: list[int] = Field(min_length=1)
    sampling_params: GenerateParams = GenerateParams()
    request_id: str | None = Field(default=None, max_length=160)

    def query(self) -> TextQuery:
        params = self.sampling_params
        if params.stop_token_ids and params.stop:
            raise RequestRefused("give stop or stop_token_ids, not both.", param="stop")
        return TextQuery(
            model=self.model,
            prompts=[self.token_ids],
            samples=params.n,
            max_tokens=params.max_tokens,
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            seed=params.seed,
            stops=(params.stop,) if isinstance(params.stop, str) else tuple(params.stop or ()),
            logprobs=params.logprobs,
        )
