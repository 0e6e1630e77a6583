// Package alerts replays incidents, and situations in which no alert may fire, against deploy/components/monitoring.
package alerts

import (
	"os"
	"os/exec"
	"path/filepath"
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
	command := exec.Command("go", "tool", "promtool", "test", "rules", filepath.Join(dir, "cases.yaml"))
	output, err := command.CombinedOutput()
	t.Logf("%s", output)
	if err != nil {
		t.Fatal(err)
	}
}
