// Package csimock starts the mock CSI driver for Go tests, and talks to its admin API: rules, fixtures, the journal and assertions.
package csimock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// BinaryVariable names the environment variable with the driver's program; without it, PATH is searched for csi-mock-driver.
const BinaryVariable = "CSI_MOCK_DRIVER_BIN"

// api is the prefix of the resources.
const api = "/api/v1"

const (
	startTimeout = 30 * time.Second
	stopTimeout  = 20 * time.Second
)

// Driver is a running driver.
type Driver struct {
	// Endpoint is the CSI socket, such as unix:///tmp/csimock1/csi.sock. It is empty after Connect.
	Endpoint string
	// AdminEndpoint is the address of the admin API: host:port or unix:///path.
	AdminEndpoint string
	client        *http.Client
	base          string
}

// Error is a request that the driver refused.
type Error struct{ Problem }

func (e *Error) Error() string { return e.Code + ": " + e.Message }

// Rule is a fault rule or a backend fault, with the fields of the fault file.
type Rule map[string]any

// Fixture is the state of an array.
type Fixture map[string]any

// Never is the expectation that no such call comes.
func Never(method string) ExpectedCount { return Exactly(0, method) }

// Exactly is the expectation that so many calls come.
func Exactly(calls int64, method string) ExpectedCount {
	return ExpectedCount{Method: method, AtLeast: calls, AtMost: &calls}
}

// Start starts a driver with flags, such as --volumes=3, and stops it when the test ends. Its log is the test's.
func Start(t testing.TB, flags ...string) *Driver {
	t.Helper()
	// The path of a socket is limited to 107 bytes, so t.TempDir is too long.
	directory, err := os.MkdirTemp("", "csimock")
	if err != nil {
		t.Fatal(err)
	}
	ready := filepath.Join(directory, "ready.json")
	program := os.Getenv(BinaryVariable)
	if program == "" {
		program = "csi-mock-driver"
	}
	own := []string{
		"--endpoint=unix://" + filepath.Join(directory, "csi.sock"),
		"--admin-endpoint=unix://" + filepath.Join(directory, "admin.sock"),
		"--ready-file=" + ready,
		// The driver ends with the test's process, also if that is killed.
		"--stop-on-stdin-eof",
	}
	command := exec.Command(program, append(own, flags...)...)
	log := &testLog{t: t}
	command.Stdout, command.Stderr = log, log
	stdin, err := command.StdinPipe()
	if err != nil {
		os.RemoveAll(directory)
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		os.RemoveAll(directory)
		t.Fatalf("cannot start %s: %v; build it, and set %s", program, err, BinaryVariable)
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	t.Cleanup(func() {
		stop(command.Process, ended)
		stdin.Close()
		os.RemoveAll(directory)
		log.close()
	})
	deadline := time.After(startTimeout)
	for {
		var state struct {
			Endpoint      string `json:"endpoint"`
			AdminEndpoint string `json:"adminEndpoint"`
		}
		text, err := os.ReadFile(ready)
		if err == nil {
			if err := json.Unmarshal(text, &state); err != nil {
				t.Fatal(err)
			}
			driver := Connect(state.AdminEndpoint)
			driver.Endpoint = state.Endpoint
			return driver
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("the driver ended before it was ready: %v", err)
		case <-deadline:
			t.Fatalf("the driver was not ready within %v", startTimeout)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Connect talks to the admin API of a running driver at host:port or unix:///path.
func Connect(adminEndpoint string) *Driver {
	driver := &Driver{AdminEndpoint: adminEndpoint, base: "http://" + adminEndpoint, client: http.DefaultClient}
	if path, isUnix := strings.CutPrefix(adminEndpoint, "unix://"); isUnix {
		var dialer net.Dialer
		dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return dialer.DialContext(ctx, "unix", path) }
		driver.base = "http://localhost"
		driver.client = &http.Client{Transport: &http.Transport{DialContext: dial}}
	}
	return driver
}

// OpenAPI returns the OpenAPI document of the admin API.
func (d *Driver) OpenAPI(ctx context.Context) ([]byte, error) {
	var document json.RawMessage
	return document, d.do(ctx, "GET", "/openapi.json", nil, &document)
}

// Reset returns to the state after the start: array, rules, scenarios, capabilities and journal.
// It is refused while the driver's own node uses a volume: see ForceReset.
func (d *Driver) Reset(ctx context.Context) error { return d.do(ctx, "POST", api+"/reset", nil, nil) }

// ForceReset first unpublishes and unstages the volumes that the driver's own node uses, as a failed test leaves them.
func (d *Driver) ForceReset(ctx context.Context) error {
	return d.do(ctx, "POST", api+"/reset?force=true", nil, nil)
}

// AddRule adds or replaces a fault rule.
func (d *Driver) AddRule(ctx context.Context, rule Rule) error {
	return d.do(ctx, "POST", api+"/faults", rule, nil)
}

// AddBackendFault adds or replaces a backend fault, until RemoveBackendFault or a reset.
func (d *Driver) AddBackendFault(ctx context.Context, fault Rule) error {
	return d.do(ctx, "POST", api+"/backend-faults", fault, nil)
}

// RemoveBackendFault removes a backend fault.
func (d *Driver) RemoveBackendFault(ctx context.Context, id string) error {
	return d.do(ctx, "DELETE", api+"/backend-faults/"+url.PathEscape(id), nil, nil)
}

// RemoveRule removes a fault rule and releases the calls that it blocks.
func (d *Driver) RemoveRule(ctx context.Context, id string) error {
	return d.do(ctx, "DELETE", api+"/faults/"+url.PathEscape(id), nil, nil)
}

// StartScenario starts a built-in scenario, until StopScenario or a reset.
func (d *Driver) StartScenario(ctx context.Context, name string) error {
	return d.setScenario(ctx, name, true)
}

// StopScenario removes the rules and backend faults of a scenario.
func (d *Driver) StopScenario(ctx context.Context, name string) error {
	return d.setScenario(ctx, name, false)
}

func (d *Driver) setScenario(ctx context.Context, name string, enabled bool) error {
	return d.do(ctx, "PUT", api+"/scenarios/"+url.PathEscape(name), map[string]bool{"enabled": enabled}, nil)
}

// Export returns the state of the array.
func (d *Driver) Export(ctx context.Context) (Fixture, error) {
	var fixture Fixture
	return fixture, d.do(ctx, "GET", api+"/fixture", nil, &fixture)
}

// Import replaces the state of the array.
func (d *Driver) Import(ctx context.Context, fixture Fixture) error {
	return d.do(ctx, "PUT", api+"/fixture", fixture, nil)
}

// Journal lists at most 1000 finished calls; query has the parameters of GET /api/v1/journal, such as method and code.
func (d *Driver) Journal(ctx context.Context, query url.Values) ([]Call, error) {
	limited := url.Values{"limit": {"1000"}}
	for key, values := range query {
		limited[key] = values
	}
	var page struct {
		Items []Call `json:"items"`
	}
	return page.Items, d.do(ctx, "GET", api+"/journal?"+limited.Encode(), nil, &page)
}

// Wait waits until there are so many calls; query has the parameters of GET /api/v1/journal/wait.
func (d *Driver) Wait(ctx context.Context, query url.Values) ([]Call, error) {
	var calls []Call
	return calls, d.do(ctx, "GET", api+"/journal/wait?"+query.Encode(), nil, &calls)
}

// Assert fails the test unless the calls are as expected, and shows what was expected beside what came.
func (d *Driver) Assert(t testing.TB, expectation Expectation) {
	t.Helper()
	var result ExpectationResult
	if err := d.do(context.Background(), "POST", api+"/journal/assert", expectation, &result); err != nil {
		t.Fatal(err)
	}
	if result.Status == Complete {
		return
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s\n%-40s %s\n", result.Message, "expected", "came")
	for _, row := range result.Comparison {
		mark := ""
		if !row.Agrees {
			mark = "  differs"
		}
		fmt.Fprintf(&text, "%-40s %s%s\n", row.Expected, row.Came, mark)
	}
	t.Error(text.String())
}

func (d *Driver) do(ctx context.Context, method, path string, body, reply any) error {
	var reader io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		reader = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, d.base+path, reader)
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := d.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode >= 300 {
		refused := new(Error)
		if err := json.Unmarshal(text, refused); err != nil {
			return fmt.Errorf("%s %s: %s: %s", method, path, response.Status, text)
		}
		return refused
	}
	if reply == nil {
		return nil
	}
	return json.Unmarshal(text, reply)
}

func stop(process *os.Process, ended chan error) {
	if err := process.Signal(syscall.SIGTERM); errors.Is(err, os.ErrProcessDone) {
		return
	}
	select {
	case <-ended:
	case <-time.After(stopTimeout):
		_ = process.Kill()
		<-ended
	}
}

// testLog writes the driver's log to that of the test, until the test ends.
type testLog struct {
	mutex sync.Mutex
	t     testing.TB
}

func (l *testLog) Write(text []byte) (int, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.t != nil {
		l.t.Log(strings.TrimRight(string(text), "\n"))
	}
	return len(text), nil
}

func (l *testLog) close() {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.t = nil
}
