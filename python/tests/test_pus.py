"""Processing units, as a program sees them."""

import pytest

import sublet


def test_the_processor_of_this_machine_is_a_unit_that_executes_functions_at_a_price(platform):
    units = platform.pus()
    processor = units[0]
    assert isinstance(processor, sublet.ProcessingUnit) and processor.name == f"{processor.node}/cpu"
    assert (processor.kind, processor.neighbours) == ("cpu", ())
    assert {"native", "wasm"} < set(processor.abilities) and any(name.startswith("python3.") for name in processor.abilities)
    assert processor.cores > 0 and processor.memory_bytes > 0 and processor.id > 0
    assert processor.price == sublet.Price(1_000, 20_000, 25_000)
    assert {unit.kind for unit in units[1:]} <= {"opencl"}
    assert [unit.unit for unit in units[1:]] == ["opencl0"] * (len(units) - 1)


def test_the_default_client_has_them_too(platform):
    before = sublet.set_default(platform)
    try:
        assert sublet.pus() == platform.pus()
    finally:
        sublet.set_default(before)


def test_who_leases_weighs_time_against_price(platform):
    with platform.lease(time_weight=0.5, wait=60) as lease:
        assert lease.call(pow, 2, 5) == 32
        assert lease.leases[0]["choice"] == "", "there is one interpreter, on the processor"
    for wrong in (-0.1, 1.001, float("nan")):
        with pytest.raises(sublet.InvalidArgument, match="thousandths that time counts"):
            platform.lease(time_weight=wrong, wait=60)
