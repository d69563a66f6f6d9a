from ..mock_clients import make_client

__all__ = ["make_client"]
