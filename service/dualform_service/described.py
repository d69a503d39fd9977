"""What reflection describes: the .proto files of a server's services, its own among them."""

from __future__ import annotations

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

PACKAGE = "grpc.reflection.v1"


def described(reflection: FileDescriptor, *others: FileDescriptor) -> DescriptorPool:
    """The files, and reflection's of v1: its package brings v1alpha alone, whose messages are the same.

    They have a pool of their own, as a later version of that package may bring v1 with it. None may import another.
    """
    pool = DescriptorPool()
    for file in (reflection, *others):
        pool.AddSerializedFile(file.serialized_pb)
    former, first = f".{reflection.package}.", FileDescriptorProto.FromString(reflection.serialized_pb)
    first.name, first.package = "grpc/reflection/v1/reflection.proto", PACKAGE
    for field in (field for message in first.message_type for field in message.field):
        if field.type_name:
            field.type_name = field.type_name.replace(former, f".{PACKAGE}.")
    for method in (method for service in first.service for method in service.method):
        method.input_type = method.input_type.replace(former, f".{PACKAGE}.")
        method.output_type = method.output_type.replace(former, f".{PACKAGE}.")
    pool.AddSerializedFile(first.SerializeToString())
    return pool
