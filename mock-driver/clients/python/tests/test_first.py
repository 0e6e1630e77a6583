"""The first test of the README, and one for each part of the client."""

from pathlib import Path

import grpc
import pytest

import csimock


def probe(driver):
    """The client under test: one Probe over gRPC, without generated code."""
    with grpc.insecure_channel(driver.endpoint) as channel:
        try:
            channel.unary_unary("/csi.v1.Identity/Probe")(b"", timeout=10)
            return "OK"
        except grpc.RpcError as error:
            return error.code().name


def test_probe_is_retried(csi_mock):
    csi_mock.add_rule({"id": "down", "match": {"method": "Probe"}, "times": 2, "action": {"code": "UNAVAILABLE"}})
    while probe(csi_mock) != "OK":  # the client under test
        pass
    csi_mock.assert_calls("Probe=UNAVAILABLE", "Probe")
    csi_mock.assert_never("DeleteVolume")


def test_each_test_begins_with_the_state_after_the_start(csi_mock):
    assert csi_mock.journal() == []
    volume = {"spec": {"id": "a", "capacity_bytes": 1 << 20, "pool": "pool-0"}}
    csi_mock.import_fixture({"volumes": [volume]})
    assert [found["spec"]["id"] for found in csi_mock.export()["volumes"]] == ["a"]
    with pytest.raises(csimock.Refused, match="disks"):
        csi_mock.import_fixture({"disks": []})
    csi_mock.reset()
    assert csi_mock.export()["volumes"] == []


def test_failed_assertion_shows_what_came(csi_mock):
    probe(csi_mock)
    with pytest.raises(AssertionError, match="no Probe with any code .* 1 calls  differs"):
        csi_mock.assert_never("Probe")
    with pytest.raises(AssertionError, match="did not come: DeleteVolume OK"):
        csi_mock.assert_calls("DeleteVolume")


def test_readme_has_a_test_that_runs():
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    example = readme.split("```python\n")[1].split("```")[0]
    assert example in Path(__file__).read_text()


def test_truth_values_in_queries_are_those_of_json(csi_mock):
    probe(csi_mock)
    assert [call["method"] for call in csi_mock.journal(newest=True, code=None)] == ["Probe"]
    with pytest.raises(csimock.Refused, match="no 1 such calls"):
        csi_mock.wait(running=True, timeout="0s")


def test_what_asserts_or_imports_nothing_is_refused(csi_mock):
    for nothing in (csi_mock.assert_calls, csi_mock.assert_never):
        with pytest.raises(csimock.Refused, match="nothing is asserted"):
            nothing()
    with pytest.raises(TypeError, match="fixture: must be a dict"):
        csi_mock.import_fixture(None)


def test_backend_faults_and_scenarios_can_be_removed(csi_mock):
    csi_mock.add_backend_fault({"id": "x", "type": "node-limit", "limit": 1})
    csi_mock.remove_backend_fault("x")
    with pytest.raises(csimock.Refused):
        csi_mock.remove_backend_fault("x")
    csi_mock.start_scenario("attach-uncertain")
    csi_mock.stop_scenario("attach-uncertain")
