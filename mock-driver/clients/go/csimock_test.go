package csimock_test

import (
	"context"
	"errors"
	"net/url"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	csimock "csi-mock-driver/clients/go"
)

// The first test of the README.
func TestProbeIsRetried(t *testing.T) {
	driver := csimock.Start(t, "--volumes=3")
	rule := csimock.Rule{"id": "down", "match": map[string]any{"method": "Probe"}, "times": 2, "action": map[string]any{"code": "UNAVAILABLE"}}
	if err := driver.AddRule(t.Context(), rule); err != nil {
		t.Fatal(err)
	}
	for probe(t, driver) != codes.OK { // the client under test
	}
	driver.Assert(t, csimock.Expectation{Expected: []csimock.Expected{{Method: "Probe", Code: "UNAVAILABLE"}, {Method: "Probe"}}})
}

func TestCallsAreCounted(t *testing.T) {
	driver := csimock.Start(t)
	probe(t, driver)
	driver.Assert(t, csimock.Expectation{Counts: []csimock.ExpectedCount{csimock.Exactly(1, "Probe"), csimock.Never("DeleteVolume")}})
}

func probe(t *testing.T, driver *csimock.Driver) codes.Code {
	connection, err := grpc.NewClient(driver.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	return status.Code(connection.Invoke(t.Context(), "/csi.v1.Identity/Probe", new(emptypb.Empty), new(emptypb.Empty)))
}

func TestFixturesJournalAndReset(t *testing.T) {
	ctx := context.Background()
	driver := csimock.Start(t, "--volumes=1")
	before, err := driver.Export(ctx)
	if err != nil {
		t.Fatal(err)
	}
	volume := map[string]any{"spec": map[string]any{"id": "a", "capacity_bytes": 1 << 20, "pool": "pool-0"}}
	if err := driver.Import(ctx, csimock.Fixture{"volumes": []any{volume}}); err != nil {
		t.Fatal(err)
	}
	var refused *csimock.Error
	if err := driver.Import(ctx, csimock.Fixture{"disks": nil}); !errors.As(err, &refused) || refused.Code != "INVALID_ARGUMENT" {
		t.Fatalf("a fixture with an unknown field: %v", err)
	}
	if code := probe(t, driver); code != codes.OK {
		t.Fatal(code)
	}
	calls, err := driver.Journal(ctx, url.Values{"method": {"Probe"}})
	if err != nil || len(calls) != 1 || calls[0].Answer.Code != "OK" {
		t.Fatalf("%v, %+v", err, calls)
	}
	if err := driver.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	after, err := driver.Export(ctx)
	if err != nil || len(after["volumes"].([]any)) != len(before["volumes"].([]any)) {
		t.Fatalf("%v, %v", err, after)
	}
	if calls, err := driver.Journal(ctx, nil); err != nil || len(calls) != 0 {
		t.Fatalf("%v, %+v", err, calls)
	}
}

// failing notes failures in place of the test's own.
type failing struct {
	testing.TB
	text string
}

func (f *failing) Error(args ...any) { f.text = args[0].(string) }

func TestFailedAssertionShowsWhatCame(t *testing.T) {
	driver := csimock.Start(t)
	probe(t, driver)
	noted := &failing{TB: t}
	driver.Assert(noted, csimock.Expectation{Counts: []csimock.ExpectedCount{csimock.Never("Probe")}})
	if noted.text == "" {
		t.Fatal("the assertion must fail")
	}
	t.Log(noted.text)
}

func TestBackendFaultsAndScenariosCanBeRemoved(t *testing.T) {
	ctx := context.Background()
	driver := csimock.Start(t)
	fault := csimock.Rule{"id": "x", "type": "node-limit", "limit": 1}
	for _, err := range []error{
		driver.AddBackendFault(ctx, fault), driver.RemoveBackendFault(ctx, "x"),
		driver.StartScenario(ctx, "attach-uncertain"), driver.StopScenario(ctx, "attach-uncertain"),
		driver.ForceReset(ctx),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	var refused *csimock.Error
	if err := driver.RemoveBackendFault(ctx, "x"); !errors.As(err, &refused) {
		t.Fatal(err)
	}
	query := url.Values{"method": {"Probe"}}
	if _, err := driver.Journal(ctx, query); err != nil || len(query) != 1 {
		t.Fatalf("%v, %v", err, query)
	}
}
