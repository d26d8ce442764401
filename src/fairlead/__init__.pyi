from fairlead.client.asynchronous import AsyncClient, AsyncContainer
from fairlead.client.client import Client
from fairlead.client.container import Container

__all__ = ["AsyncClient", "AsyncContainer", "Client", "Container", "__version__"]

__version__: str
