package csimock_test

import (
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	csimock "csi-mock-driver/clients/go"
)

const (
	generator = "github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.2"
	typesFile = "types.gen.go"
)

var update = flag.Bool("update", false, "generate "+typesFile+" from the driver's /openapi.json")

// TestTypesAreCurrent compares the hash of the driver's schemas with that of those that the types were generated from. With -update it
// generates them again.
func TestTypesAreCurrent(t *testing.T) {
	driver := csimock.Start(t)
	document, err := driver.OpenAPI(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var parts struct {
		Components struct {
			Schemas map[string]any `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(document, &parts); err != nil {
		t.Fatal(err)
	}
	if len(parts.Components.Schemas) == 0 {
		t.Fatal("the document has no schemas")
	}
	// Marshal sorts the keys.
	schemas, err := json.Marshal(parts.Components.Schemas)
	if err != nil {
		t.Fatal(err)
	}
	mark := fmt.Sprintf("// Schemas: sha256 %x\n", sha256.Sum256(schemas))
	if *update {
		generate(t, document, mark)
	}
	text, err := os.ReadFile(typesFile)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(string(text), mark) {
		t.Errorf("%s is of another /openapi.json: run go test -run TestTypesAreCurrent -update", typesFile)
	}
}

func generate(t *testing.T, document []byte, mark string) {
	file := filepath.Join(t.TempDir(), "openapi.json")
	if err := os.WriteFile(file, document, 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), "go", "run", generator, "-config", "generate.yaml", file)
	command.Stderr = os.Stderr
	types, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(typesFile, append(types, "\n"+mark...), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestReadmeHasATestThatRuns compares the example of the README with the tests of this package.
func TestReadmeHasATestThatRuns(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile("csimock_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(readme), "```go\n")
	example, _, found := strings.Cut(example, "```")
	if !found || !strings.Contains(string(tests), example) {
		t.Errorf("no test of csimock_test.go is the example of README.md:\n%s", example)
	}
}
