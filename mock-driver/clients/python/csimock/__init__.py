"""Starts the mock CSI driver for tests, and talks to its admin API: rules, fixtures, the journal and assertions.

The package depends on the standard library only.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Union
from urllib.parse import quote, urlencode

BINARY_VARIABLE = "CSI_MOCK_DRIVER_BIN"
"""The environment variable with the driver's program; without it, PATH is searched for csi-mock-driver."""

START_TIMEOUT = 30.0
STOP_TIMEOUT = 20.0


class Refused(Exception):
    """The driver refused a request of the admin API."""

    def __init__(self, code: str, message: str, field: Optional[str] = None):
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.field = code, message, field


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str):
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self._path)


class Client:
    """A client of the admin API at host:port or unix:///path."""

    def __init__(self, admin_endpoint: str):
        self.admin_endpoint = admin_endpoint

    def reset(self, force: bool = False) -> None:
        """Returns to the state after the start: array, rules, scenarios, capabilities and journal. It is refused while the driver's
        own node uses a volume; with force, such volumes are unpublished and unstaged first."""
        self._request("POST", "/reset" + ("?force=true" if force else ""))

    def add_rule(self, rule: Dict[str, Any]) -> None:
        """Adds or replaces a fault rule, with the fields of the fault file."""
        self._request("POST", "/faults", rule)

    def add_backend_fault(self, fault: Dict[str, Any]) -> None:
        """Adds or replaces a backend fault, until remove_backend_fault or a reset."""
        self._request("POST", "/backend-faults", fault)

    def remove_backend_fault(self, fault: str) -> None:
        """Removes a backend fault."""
        self._request("DELETE", f"/backend-faults/{quote(fault, safe='')}")

    def remove_rule(self, rule: str) -> None:
        """Removes a fault rule and releases the calls that it blocks."""
        self._request("DELETE", f"/faults/{quote(rule, safe='')}")

    def start_scenario(self, name: str) -> None:
        """Starts a built-in scenario, until stop_scenario or a reset."""
        self._request("PUT", f"/scenarios/{quote(name, safe='')}", {"enabled": True})

    def stop_scenario(self, name: str) -> None:
        """Removes the rules and backend faults of a scenario."""
        self._request("PUT", f"/scenarios/{quote(name, safe='')}", {"enabled": False})

    def export(self) -> Dict[str, Any]:
        """The state of the array."""
        return self._request("GET", "/fixture")

    def import_fixture(self, fixture: Dict[str, Any]) -> None:
        """Replaces the state of the array."""
        if not isinstance(fixture, dict):
            raise TypeError(f"fixture: must be a dict, as export() returns it, is {fixture!r}")
        self._request("PUT", "/fixture", fixture)

    def journal(self, **query: Any) -> List[Dict[str, Any]]:
        """At most 1000 finished calls; the query has the parameters of GET /api/v1/journal, such as method and code."""
        return self._request("GET", "/journal?" + _encoded({"limit": 1000, **query}))["items"]

    def wait(self, **query: Any) -> List[Dict[str, Any]]:
        """Waits until there are calls; the query has the parameters of GET /api/v1/journal/wait."""
        return self._request("GET", "/journal/wait?" + _encoded(query))

    def assert_calls(self, *expected: Union[str, Dict[str, Any]], **more: Any) -> None:
        """Compares the calls with those expected: "METHOD", "METHOD=CODE", or a dict with method, code, volume, node and request;
        anyOrder, counts and timeout are those of the API."""

        def call(wanted: Union[str, Dict[str, Any]]) -> Dict[str, Any]:
            if isinstance(wanted, dict):
                return wanted
            method, _, code = wanted.partition("=")
            return {"method": method, "code": code or "OK"}

        calls = [call(wanted) for wanted in expected]
        result = self._request("POST", "/journal/assert", {"expected": calls, **more})
        if result["status"] == "complete":
            return
        lines = [result["message"], f"{'expected':40} came"]
        for row in result["comparison"]:
            mark = "" if row["agrees"] else "  differs"
            lines.append(f"{row.get('expected', '-'):40} {row.get('came', '-')}{mark}")
        raise AssertionError("\n".join(lines))

    def assert_never(self, *methods: str, timeout: Optional[str] = None) -> None:
        """No such call has come, and none comes within the timeout, such as 2s."""
        counts = [{"method": method, "atMost": 0} for method in methods]
        self.assert_calls(counts=counts, **({"timeout": timeout} if timeout else {}))

    def _request(self, method: str, path: str, body: Any = None) -> Any:
        if self.admin_endpoint.startswith("unix://"):
            connection: http.client.HTTPConnection = _UnixConnection(self.admin_endpoint[len("unix://"):])
        else:
            connection = http.client.HTTPConnection(self.admin_endpoint)
        try:
            text = None if body is None else json.dumps(body).encode()
            connection.request(method, "/api/v1" + path, text, {"Content-Type": "application/json"})
            response = connection.getresponse()
            reply = response.read()
        finally:
            connection.close()
        if response.status >= 300:
            problem = json.loads(reply)
            raise Refused(problem["code"], problem["message"], problem.get("field"))
        return json.loads(reply) if reply else None


def _encoded(query: Dict[str, Any]) -> str:
    """A query in which truth values are those of JSON, and parameters that are None are left out."""
    texts = {key: str(value).lower() if isinstance(value, bool) else value for key, value in query.items()}
    return urlencode({key: value for key, value in texts.items() if value is not None})


class Driver(Client):
    """A driver in a process of its own, until `stop` or the end of the `with` block."""

    def __init__(self, *flags: str):
        # The path of a socket is limited to 107 bytes.
        self._directory = Path(tempfile.mkdtemp(prefix="csimock"))
        ready = self._directory / "ready.json"
        program = os.environ.get(BINARY_VARIABLE, "csi-mock-driver")
        own = [
            f"--endpoint=unix://{self._directory}/csi.sock",
            f"--admin-endpoint=unix://{self._directory}/admin.sock",
            f"--ready-file={ready}",
            # The driver ends with the test's process, also if that is killed.
            "--stop-on-stdin-eof",
        ]
        try:
            self._process = subprocess.Popen([program, *own, *flags], stdin=subprocess.PIPE)
        except OSError as error:
            shutil.rmtree(self._directory)
            raise RuntimeError(f"cannot start {program}: {error}; build it, and set {BINARY_VARIABLE}") from error
        deadline = time.monotonic() + START_TIMEOUT
        while not ready.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"the driver was not ready; exit code {self._process.returncode}")
            time.sleep(0.005)
        state = json.loads(ready.read_text())
        self.endpoint: str = state["endpoint"]
        super().__init__(state["adminEndpoint"])

    def stop(self) -> None:
        """Stops the driver."""
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdin:
            self._process.stdin.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
