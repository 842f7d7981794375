"""The same messages for the protobuf library, made from our declarations at run time."""

from __future__ import annotations

import functools
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from yarn_accel.adapters.hadoop_rpc.protobuf import FieldType, schema_of

_TYPES = {
    FieldType.INT32: descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    FieldType.INT64: descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    FieldType.UINT32: descriptor_pb2.FieldDescriptorProto.TYPE_UINT32,
    FieldType.UINT64: descriptor_pb2.FieldDescriptorProto.TYPE_UINT64,
    FieldType.SINT32: descriptor_pb2.FieldDescriptorProto.TYPE_SINT32,
    FieldType.BOOL: descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
    FieldType.FLOAT: descriptor_pb2.FieldDescriptorProto.TYPE_FLOAT,
    FieldType.STRING: descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    FieldType.BYTES: descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    FieldType.ENUM: descriptor_pb2.FieldDescriptorProto.TYPE_INT32,  # the same bytes
    FieldType.MESSAGE: descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE,
}
_POOL = descriptor_pool.DescriptorPool()


@functools.cache
def library_class(cls: type[Any]) -> Any:
    """The protobuf library's class for one of our message classes."""
    _declare(cls)
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"oracle.{cls.__name__}"))


@functools.cache
def _declare(cls: type[Any]) -> str:
    file = descriptor_pb2.FileDescriptorProto(name=f"{cls.__name__}.proto", package="oracle", syntax="proto2")
    declared = file.message_type.add(name=cls.__name__)
    for name, spec in schema_of(cls).items():
        field = declared.field.add(name=name, number=spec.number, type=_TYPES[spec.kind])
        field.label = field.LABEL_REPEATED if spec.is_repeated else field.LABEL_OPTIONAL
        if spec.kind is FieldType.MESSAGE and spec.type is not None:
            dependency = _declare(spec.type)
            if dependency not in file.dependency:
                file.dependency.append(dependency)
            field.type_name = f".oracle.{spec.type.__name__}"
    _POOL.Add(file)
    return file.name
