"""OpenAI's and Anthropic's APIs on the same models, with fair shares of sampling."""
