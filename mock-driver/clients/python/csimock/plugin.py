"""The pytest fixtures of csimock."""

import pytest

from . import Driver


@pytest.fixture(scope="session")
def _csi_mock_driver(request):
    with Driver(*request.config.getoption("--csi-mock-flag")) as driver:
        yield driver


@pytest.fixture
def csi_mock(_csi_mock_driver):
    """A driver in the state after its start. Tests share its process."""
    # Also after a test that left a volume published.
    _csi_mock_driver.reset(force=True)
    return _csi_mock_driver


def pytest_addoption(parser):
    parser.addoption("--csi-mock-flag", action="append", default=[], help="flag of the mock CSI driver; repeatable")
