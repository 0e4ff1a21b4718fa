"""The shape of the wire as text: numbers, types and method paths, which are in the bytes.

Names of fields and messages are not, so they may change. A message is known by its place in the
order in which they are met.
"""

from collections.abc import Iterator

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from allhands_proto.v1 import coordinator_pb2, peer_pb2

_TYPES = {
    value: name.removeprefix("TYPE_").lower()
    for name, value in vars(FieldDescriptor).items()
    if name.startswith("TYPE_")
}
FRAMED = (
    *(
        coordinator_pb2.KvHello,
        coordinator_pb2.KvChallenge,
        coordinator_pb2.KvProof,
        coordinator_pb2.KvWelcome,
    ),
    *(coordinator_pb2.Calls, coordinator_pb2.Replies),
    *(coordinator_pb2.Heartbeat, coordinator_pb2.Aborted, coordinator_pb2.SessionEvent),
)
"""Messages that are in frames and not in methods: of the key-value port, and of links."""


def lines() -> Iterator[str]:
    """Describe every method, then every message of a method."""
    met: dict[str, Descriptor] = {}

    def number(message: Descriptor) -> str:
        met.setdefault(message.full_name, message)
        return f"#{[*met].index(message.full_name) + 1}"

    for module in (coordinator_pb2, peer_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                asked = "stream " * method.client_streaming + number(method.input_type)
                told = "stream " * method.server_streaming + number(method.output_type)
                yield f"/{service.full_name}/{method.name}: {asked} -> {told}"
    for message in FRAMED:
        yield f"framed: {number(message.DESCRIPTOR)}"
    described = 0
    while described < len(met):
        message = [*met.values()][described]
        described += 1
        yield f"#{described}:"
        for field in sorted(message.fields, key=lambda one: one.number):
            kind = _TYPES[field.type]
            if field.message_type is not None:
                kind = f"message {number(field.message_type)}"
            elif field.enum_type is not None:
                kind = f"enum {[value.number for value in field.enum_type.values]}"
            yield f"    {field.number}: {'repeated ' * field.is_repeated}{kind}"
