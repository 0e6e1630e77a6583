// Package alerts replays incidents, and situations in which no alert may fire, against deploy/components/monitoring.
package alerts

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const monitoring = "../../deploy/components/monitoring"

// TestRules runs `promtool test rules`. Prometheus reads the spec of the PrometheusRule, not the object.
func TestRules(t *testing.T) {
	object, err := os.ReadFile(filepath.Join(monitoring, "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var rule struct {
		Spec map[string]any `json:"spec"`
	}
	if err := yaml.Unmarshal(object, &rule); err != nil {
		t.Fatal(err)
	}
	if rule.Spec == nil {
		t.Fatal("alerts.yaml must have a spec")
	}
	rules, err := yaml.Marshal(rule.Spec)
	if err != nil {
		t.Fatal(err)
	}
	cases, err := os.ReadFile("cases.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string][]byte{"rules.yaml": rules, "cases.yaml": cases} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	promtool := filepath.Join(dir, "promtool")
	// Without the clients of clouds for service discovery, which are most of promtool. Not `go tool`, which shares no compiled packages with
	// the other builds.
	build := exec.Command("go", "build", "-mod=readonly", "-trimpath", "-tags=remove_all_sd", "-o", promtool,
		"github.com/prometheus/prometheus/cmd/promtool")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	output, err := exec.Command(promtool, "test", "rules", filepath.Join(dir, "cases.yaml")).CombinedOutput()
	t.Logf("%s", output)
	if err != nil {
		t.Fatal(err)
	}
}

// An alert that no incident causes is not tested.
func TestEveryAlertHasAnIncident(t *testing.T) {
	names := func(file, pattern string) map[string]bool {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]bool{}
		for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
			found[match[1]] = true
		}
		return found
	}
	alerts := names(filepath.Join(monitoring, "alerts.yaml"), `(?m)^\s*- alert: (\w+)$`)
	incidents := names("cases.yaml", `alertname="(\w+)"`)
	if len(alerts) < 20 {
		t.Fatalf("only %v were found", alerts)
	}
	for alert := range alerts {
		if !incidents[alert] {
			t.Errorf("no case expects %s", alert)
		}
	}
}

// A panel shows the series of each alert, and of one cluster only.
func TestDashboardHasTheSeriesOfTheAlerts(t *testing.T) {
	alerts, err := os.ReadFile(filepath.Join(monitoring, "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(monitoring, "csi-attacher.json"))
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := yaml.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	var shown strings.Builder
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			shown.WriteString(target.Expr + "\n")
			if strings.Count(target.Expr, "{") != strings.Count(target.Expr, `{cluster="$cluster", namespace="$namespace", job="$job"`) {
				t.Errorf("%s: a selector of %s is not for one attacher", panel.Title, target.Expr)
			}
		}
	}
	for _, series := range regexp.MustCompile(`csi_attacher_\w+`).FindAllString(string(alerts), -1) {
		if !strings.Contains(shown.String(), series) {
			t.Errorf("no panel shows %s", series)
		}
	}
}
