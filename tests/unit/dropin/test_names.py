from __future__ import annotations

import numpy as np
import pytest

from pipeline import data
from pipeline.channel import ChannelData, ChannelDataErrcode, ChannelDataType
from pipeline.error_catch import CustomException, CustomExceptionCode, ErrorCatch, ProductErrCode
from pipeline.errors import ErrorCode


def test_codes_equal_those_of_the_predecessor():
    assert ChannelDataErrcode.OK.value == 0
    assert CustomExceptionCode.INPUT_PARAMS_ERROR.value == 5000
    assert CustomExceptionCode.UNKNOW.value == 10000
    assert ChannelDataErrcode is CustomExceptionCode


def test_product_codes_can_be_extended():
    class Mine(ProductErrCode):
        NO_FACE = 51

    assert CustomException(Mine.NO_FACE, "none", True).code == 51


def test_a_record_is_made_and_read_by_the_old_names():
    record = ChannelData(
        datatype=ChannelDataType.CHANNEL_NPDATA.value,
        npdata={"x": np.zeros(2)},
        data_id=4,
        log_id=9,
    )
    assert isinstance(record, ChannelData)
    assert isinstance(record, data.ChannelData)
    assert (record.id, record.log_id, record.datatype) == (4, 9, 1)
    assert record.parse().keys() == {"x"}
    assert record.error_code == 0
    assert record.prod_error_code is None


def test_a_record_of_an_error_raises_instead_of_exiting_when_parsed():
    record = ChannelData(datatype=2, error_code=7000, error_info="bad", data_id=1)
    assert (record.datatype, record.error_code, record.error_info) == (2, 7000, "bad")
    with pytest.raises(Exception, match="bad"):
        record.parse()


def test_a_product_error_is_distinguished():
    record = ChannelData(prod_error_code=0, prod_error_info="odd", data_id=1)
    assert (record.error_code, record.error_info) == (ErrorCode.PRODUCT_ERROR, "")
    assert (record.prod_error_code, record.prod_error_info) == (0, "odd")
    assert record.datatype == 2


@pytest.mark.parametrize(
    ("value", "code"),
    [(np.zeros(1), 0), (["a"], 0), ([1], 7000), (1, 7000), ("text", 7000)],
)
def test_feeds_are_checked_by_the_old_functions(value, code):
    assert ChannelData.check_npdata({"x": value})[0] == code
    assert ChannelData.check_batch_npdata([{"x": value}])[0] == code


def test_dicts_are_checked_by_the_old_function():
    assert ChannelData.check_dictdata({"a": 1})[0] == 0
    assert ChannelData.check_dictdata([{"a": 1}, 2])[0] == 7000


def test_error_catch_returns_code_and_text():
    @ErrorCatch
    def fails():
        raise CustomException(CustomExceptionCode.INIT_ERROR, "no: disk")

    @ErrorCatch
    def works():
        return 5

    result, caught = fails()
    assert result is None
    assert (caught.error_code, caught.error_info) == (3003, "no: disk")
    result, caught = works()
    assert (result, caught.error_code) == (5, 0)
