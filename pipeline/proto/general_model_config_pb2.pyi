from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import Any as _Any, ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FeedVar(_message.Message):
    __slots__ = ("name", "alias_name", "is_lod_tensor", "feed_type", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ALIAS_NAME_FIELD_NUMBER: _ClassVar[int]
    IS_LOD_TENSOR_FIELD_NUMBER: _ClassVar[int]
    FEED_TYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    alias_name: str
    is_lod_tensor: bool
    feed_type: int
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., alias_name: _Optional[str] = ..., is_lod_tensor: bool = ..., feed_type: _Optional[int] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class FetchVar(_message.Message):
    __slots__ = ("name", "alias_name", "is_lod_tensor", "fetch_type", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ALIAS_NAME_FIELD_NUMBER: _ClassVar[int]
    IS_LOD_TENSOR_FIELD_NUMBER: _ClassVar[int]
    FETCH_TYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    alias_name: str
    is_lod_tensor: bool
    fetch_type: int
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., alias_name: _Optional[str] = ..., is_lod_tensor: bool = ..., fetch_type: _Optional[int] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class GeneralModelConfig(_message.Message):
    __slots__ = ("feed_var", "fetch_var")
    FEED_VAR_FIELD_NUMBER: _ClassVar[int]
    FETCH_VAR_FIELD_NUMBER: _ClassVar[int]
    feed_var: _containers.RepeatedCompositeFieldContainer[FeedVar]
    fetch_var: _containers.RepeatedCompositeFieldContainer[FetchVar]
    def __init__(self, feed_var: _Optional[_Iterable[_Union[FeedVar, _Mapping[str, _Any]]]] = ..., fetch_var: _Optional[_Iterable[_Union[FetchVar, _Mapping[str, _Any]]]] = ...) -> None: ...
