"""Reflection tells of every service that a server has, by either version of itself."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from dualform_service.server import Server

METHODS = {
    "dualform.v1.Memory": {
        "Info",
        "TopK",
        "GroupSum",
        "GradientTopK",
        "GradientSum",
        "Output",
        "Contributions",
        "Placebo",
        "Weights",
        "Cancellation",
        "Slots",
        "Sql",
        "QuerySet",
        "Verify",
        "Distribution",
        "Previews",
    },
    "grpc.health.v1.Health": {"Check", "List", "Watch"},
    "grpc.reflection.v1.ServerReflection": {"ServerReflectionInfo"},
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo"},
}


def reflected(address: str, version: str, **asked: str) -> reflection_pb2.ServerReflectionResponse:
    with grpc.insecure_channel(address) as channel:
        call = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            reflection_pb2.ServerReflectionRequest.SerializeToString,
            reflection_pb2.ServerReflectionResponse.FromString,
        )
        (answer,) = call(iter([reflection_pb2.ServerReflectionRequest(**asked)]), timeout=60)
    return answer


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_every_service_that_is_listed_is_described(server, version):
    listed = reflected(server.address, version, list_services="").list_services_response.service
    assert {service.name for service in listed} == METHODS.keys()
    for name, methods in METHODS.items():
        answer = reflected(server.address, version, file_containing_symbol=name)
        files = map(
            descriptor_pb2.FileDescriptorProto.FromString, answer.file_descriptor_response.file_descriptor_proto
        )
        found = {f"{file.package}.{service.name}": service for file in files for service in file.service}
        assert name in found, answer.error_response
        assert {method.name for method in found[name].method} == methods


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_messages_of_a_described_service_are_those_of_its_version(server, version):
    name = f"grpc.reflection.{version}.ServerReflectionRequest"
    answer = reflected(server.address, version, file_containing_symbol=name)
    (file,) = map(descriptor_pb2.FileDescriptorProto.FromString, answer.file_descriptor_response.file_descriptor_proto)
    other = {"v1": "v1alpha.", "v1alpha": "v1."}[version]
    (service,) = file.service
    named = [method.input_type for method in service.method] + [method.output_type for method in service.method]
    named += [field.type_name for message in file.message_type for field in message.field]
    assert not [name for name in named if other in name]


def test_health_lists_what_it_knows_of_but_no_memories_by_their_names(engine):
    with Server({"secret": engine, "other": engine}) as server, grpc.insecure_channel(server.address) as channel:
        answer = health_pb2_grpc.HealthStub(channel).List(health_pb2.HealthListRequest(), timeout=60)
    assert answer.statuses.keys() == {"", "dualform.v1.Memory", "grpc.health.v1.Health"}
    assert {own.status for own in answer.statuses.values()} == {health_pb2.HealthCheckResponse.SERVING}
