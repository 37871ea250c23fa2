"""The verb `address`: the private address of one of this host's network interfaces.

Runs on the host, called by `inv serve` for a server over several hosts, before anything is started. Read-only.
"""

from __future__ import annotations

import ipaddress
import socket

import psutil

from remote.context import Context
from remote.shared.errors import HostError
from remote.shared.messages.server import AddressRequest, AddressResult


def address(request: AddressRequest, context: Context) -> AddressResult:
    """Return the interface's first private address, IPv4 before IPv6; raises HostError if it has none."""
    interfaces = psutil.net_if_addrs()
    if request.interface not in interfaces:
        raise HostError(
            f"There is no network interface {request.interface!r}.",
            remedy=f"`private_interface` can be one of: {', '.join(sorted(interfaces))}.",
        )
    found = interfaces[request.interface]
    texts = [
        entry.address.partition("%")[0]
        for family in (socket.AF_INET, socket.AF_INET6)
        for entry in found
        if entry.family == family
    ]
    private = [text for text in texts if ipaddress.ip_address(text).is_private]
    if not private:
        raise HostError(
            f"The interface {request.interface!r} has no private address ({', '.join(texts) or 'none at all'}).",
            remedy="The nodes of a server must meet on a private network: name another `private_interface`.",
        )
    return AddressResult(address=private[0])
