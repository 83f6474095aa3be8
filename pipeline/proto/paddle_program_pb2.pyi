from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import Any as _Any, ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TensorDesc(_message.Message):
    __slots__ = ("data_type", "dims")
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    data_type: int
    dims: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, data_type: _Optional[int] = ..., dims: _Optional[_Iterable[int]] = ...) -> None: ...

class LodTensorDesc(_message.Message):
    __slots__ = ("tensor", "lod_level")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    LOD_LEVEL_FIELD_NUMBER: _ClassVar[int]
    tensor: TensorDesc
    lod_level: int
    def __init__(self, tensor: _Optional[_Union[TensorDesc, _Mapping[str, _Any]]] = ..., lod_level: _Optional[int] = ...) -> None: ...

class VarType(_message.Message):
    __slots__ = ("type", "lod_tensor")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    LOD_TENSOR_FIELD_NUMBER: _ClassVar[int]
    type: int
    lod_tensor: LodTensorDesc
    def __init__(self, type: _Optional[int] = ..., lod_tensor: _Optional[_Union[LodTensorDesc, _Mapping[str, _Any]]] = ...) -> None: ...

class VarDesc(_message.Message):
    __slots__ = ("name", "type", "persistable")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    PERSISTABLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: VarType
    persistable: bool
    def __init__(self, name: _Optional[str] = ..., type: _Optional[_Union[VarType, _Mapping[str, _Any]]] = ..., persistable: bool = ...) -> None: ...

class OpVar(_message.Message):
    __slots__ = ("parameter", "arguments")
    PARAMETER_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    parameter: str
    arguments: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, parameter: _Optional[str] = ..., arguments: _Optional[_Iterable[str]] = ...) -> None: ...

class OpDesc(_message.Message):
    __slots__ = ("inputs", "outputs", "type")
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    inputs: _containers.RepeatedCompositeFieldContainer[OpVar]
    outputs: _containers.RepeatedCompositeFieldContainer[OpVar]
    type: str
    def __init__(self, inputs: _Optional[_Iterable[_Union[OpVar, _Mapping[str, _Any]]]] = ..., outputs: _Optional[_Iterable[_Union[OpVar, _Mapping[str, _Any]]]] = ..., type: _Optional[str] = ...) -> None: ...

class BlockDesc(_message.Message):
    __slots__ = ("vars", "ops")
    VARS_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    vars: _containers.RepeatedCompositeFieldContainer[VarDesc]
    ops: _containers.RepeatedCompositeFieldContainer[OpDesc]
    def __init__(self, vars: _Optional[_Iterable[_Union[VarDesc, _Mapping[str, _Any]]]] = ..., ops: _Optional[_Iterable[_Union[OpDesc, _Mapping[str, _Any]]]] = ...) -> None: ...

class ProgramDesc(_message.Message):
    __slots__ = ("blocks",)
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedCompositeFieldContainer[BlockDesc]
    def __init__(self, blocks: _Optional[_Iterable[_Union[BlockDesc, _Mapping[str, _Any]]]] = ...) -> None: ...
