"""Endpoints by a name in DNS.

The library is dnspython: pure Python without dependencies, typed, maintained since 2003, 3 MB. It gives TTLs, SRV and
"no such name" apart from "no answer", which `getaddrinfo` does not. aiodns would do it too, but is a C library
(c-ares) with two layers around it, and has changed its API with nearly every major version.

What an answer means:

- addresses: the set, sorted, since servers rotate them. The next question comes when the TTL is over, within the
  bounds of the configuration (CoreDNS gives 5 s for names of Kubernetes).
- no such name, or none with such records: the empty set. So answers a headless Service of Kubernetes that is scaled to
  zero. A name that is misspelt answers so too, and is said in the log.
- all else (SERVFAIL, REFUSED, time over, what cannot be read): a failure, which changes nothing.

Answers that were cut off are asked for again by TCP (dnspython does that), and so are the ends of chains of CNAMEs that
a server did not follow. The system's search list counts, as for any program, unless the name ends with a dot; so do
changes of /etc/resolv.conf.

`any` asks for A and AAAA and needs both answers: one alone would take half of the engines away.
SRV: all targets count, whatever their priority and weight, for spreading the load is Fairlane's own business; targets
are resolved by the addresses that came along with the answer, else by questions of their own. The target "." means no
service: the empty set.

Reading an answer takes about 0.09 ms of CPU for each address (1.8 ms for 3, 89 for 1,000; `time.process_time` around
ten rounds on a busy machine), in the event loop and in one piece: with a thousand engines, ask less often or by another
source.

DNS cannot tell whether another engine took over an address: `identity` is empty. The Kubernetes source can.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar

import dns.asyncresolver
import dns.exception
import dns.name
import dns.rdatatype
import dns.resolver

from extproc.config.endpoints import Dns
from extproc.config.units import ip_port, split_host_port
from extproc.engines.endpoints.source import Endpoint, Source, SourceError

_T = TypeVar("_T")

_LONGEST_CHAIN: Final = 8  # CNAMEs that the server did not follow itself
_AT_ONCE: Final = 16  # questions for targets of SRV records
_PAYLOAD: Final = 1232  # bytes by UDP that no network takes apart
_ADDRESSES: Final = {
    "a": (dns.rdatatype.A,),
    "aaaa": (dns.rdatatype.AAAA,),
    "any": (dns.rdatatype.A, dns.rdatatype.AAAA),
}


class DnsSource(Source):
    """The addresses of a name. See the module for what answers mean."""

    def __init__(self, config: Dns, pool: str, clock: Callable[[], float]) -> None:
        super().__init__(f"dns {config.record} {config.name}", pool, clock)
        self._config = config
        self._told_empty = False

    async def _round(self) -> float:
        lookup = _Lookup(self._config)
        if self._config.record == "srv":
            addresses = await lookup.services(self._config.name)
        else:
            kinds = _ADDRESSES[self._config.record]
            ips = await lookup.addresses(self._config.name, kinds)
            addresses = [_address(ip, self._config.port or 0) for ip in ips]
        if not addresses and not self._told_empty:
            self._log.warning(
                "DNS has no addresses: the pool has no endpoints",
                name=self._config.name,
                note="so answers a service scaled to zero; a name that is misspelt does too",
            )
        self._told_empty = not addresses
        self._found(Endpoint(address) for address in sorted(set(addresses)))
        ttl = lookup.ttl if addresses and lookup.ttl is not None else 0.0
        return min(max(ttl, self._config.interval), self._config.max_interval)

    def _pause_after_failure(self, in_row: int) -> float:  # noqa: ARG002  a question costs next to nothing
        return self._config.interval


class _Lookup:
    """The questions of one round. `ttl`: the shortest in all answers, seconds."""

    def __init__(self, config: Dns) -> None:
        """Raises SourceError."""
        self.ttl: float | None = None
        self._timeout_s = config.timeout
        self._name = config.name
        # a server of one's own is asked for whole names: the search list belongs to the system's servers
        self._search = config.resolver is None
        self._known: dict[dns.name.Name, set[str]] = {}  # addresses that came along
        try:
            resolver = dns.asyncresolver.Resolver(configure=config.resolver is None)
        except dns.resolver.NoResolverConfiguration as error:
            raise SourceError("/etc/resolv.conf names no server: give endpoints.dns.resolver") from error
        if config.resolver is not None:
            host, port = split_host_port(config.resolver)
            resolver.nameservers, resolver.port = [host], port
        # several servers, or several tries of one, have to fit in
        resolver.timeout, resolver.lifetime = min(2.0, config.timeout / 2), config.timeout
        resolver.use_edns(0, 0, _PAYLOAD)
        self._resolver = resolver

    async def addresses(self, name: str | dns.name.Name, kinds: Iterable[dns.rdatatype.RdataType]) -> set[str]:
        """Of all those kinds. Raises SourceError."""
        answers = await _all([self._ask(name, kind) for kind in kinds])
        return {record.address for answer in answers if answer is not None for record in answer}

    async def services(self, name: str) -> list[str]:
        """`ip:port` of all targets of the SRV records. Raises SourceError."""
        answer = await self._ask(name, dns.rdatatype.SRV)
        if answer is None:
            return []
        for rrset in answer.response.additional:
            if rrset.rdtype in _ADDRESSES["any"]:
                self._known.setdefault(rrset.name, set()).update(record.address for record in rrset)
                self._note_ttl(rrset.ttl)
        targets = {record.target for record in answer if record.target != dns.name.root}
        free = asyncio.Semaphore(_AT_ONCE)

        async def resolve(target: dns.name.Name) -> None:
            async with free:
                self._known[target] = await self.addresses(target, _ADDRESSES["any"])

        await _all([resolve(target) for target in targets if target not in self._known])
        return [_address(ip, record.port) for record in answer for ip in self._known.get(record.target, ())]

    async def _ask(self, name: str | dns.name.Name, kind: dns.rdatatype.RdataType) -> dns.resolver.Answer | None:
        """None: there is no such name, or it has no such records. Raises SourceError."""
        for _ in range(_LONGEST_CHAIN):
            try:
                answer = await self._resolver.resolve(name, kind, search=self._search, raise_on_no_answer=False)
            except dns.resolver.NXDOMAIN:
                return None
            except dns.exception.Timeout as error:
                servers = ", ".join(str(server) for server in self._resolver.nameservers)
                raise SourceError(
                    f"no answer for {name} within {self._timeout_s:g} s that could be read, from {servers}: "
                    "see whether that name server runs and can be reached"
                ) from error
            except dns.resolver.NoNameservers as error:
                raise SourceError(f"{_one_line(error)}: see what that name server has against the name") from error
            except (dns.exception.DNSException, OSError, EOFError) as error:
                raise SourceError(f"{name} cannot be resolved: {_one_line(error)}") from error
            self._note_ttl(answer.chaining_result.minimum_ttl)
            if answer.rrset is not None:
                return answer
            if answer.canonical_name == answer.qname:
                return None
            name = answer.canonical_name
        raise SourceError(f"{self._name}: more than {_LONGEST_CHAIN} CNAMEs one after another: a circle, it seems")

    def _note_ttl(self, ttl: float) -> None:
        self.ttl = ttl if self.ttl is None else min(self.ttl, ttl)


async def _all(questions: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Their results in order. Raises SourceError as soon as one does, and asks no further."""
    failure: SourceError | None = None
    tasks: list[asyncio.Task[_T]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(question) for question in questions]
    except* SourceError as errors:
        failure = next(each for each in errors.exceptions if isinstance(each, SourceError))
    if failure is not None:
        raise failure
    return [task.result() for task in tasks]


def _address(ip: str, port: int) -> str:
    """Raises SourceError."""
    try:
        return ip_port(f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}")
    except ValueError as error:
        raise SourceError(f"a record has the port {port}: mend it in DNS, or ask for another record") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
