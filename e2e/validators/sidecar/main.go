// Prints, as JSON, which flags and feature gates a sidecar of kubernetes-csi knows in a released version, as its sources
// declare them. To build the sidecar and ask it would take minutes.
//
//	sidecar MODULE@VERSION FOLDER...
//
// reads the Go files in these folders of the module, and the flags that most sidecars have in common from csi-lib-utils, in
// the version that the module names.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const library = "github.com/kubernetes-csi/csi-lib-utils"

var required = regexp.MustCompile(`(?m)^\s*(?:require\s+)?` + regexp.QuoteMeta(library) + `\s+(v\S+)`)

// Where the name stands among the arguments of the functions that declare a flag, in Go's own package and in pflag.
var declaring = map[string]int{}

func init() {
	for _, kind := range []string{"Bool", "Duration", "Float32", "Float64", "Int", "Int64", "String", "StringSlice", "Uint"} {
		declaring[kind] = 0
		declaring[kind+"Var"] = 1
	}
	declaring["Var"] = 1
}

type answer struct {
	Flags []string `json:"flags"`
	Gates []string `json:"gates"`
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return errors.New("usage: sidecar MODULE@VERSION FOLDER...")
	}
	root, err := sources(args[0])
	if err != nil {
		return err
	}
	known := declarations{constants: map[string]string{}, gates: []string{}}
	for _, folder := range args[1:] {
		if err := known.read(filepath.Join(root, folder)); err != nil {
			return err
		}
	}
	if known.isCommon {
		module, err := os.ReadFile(filepath.Join(root, "go.mod"))
		if err != nil {
			return err
		}
		version := required.FindSubmatch(module)
		if version == nil {
			return fmt.Errorf("%s requires no %s", args[0], library)
		}
		common, err := sources(library + "@" + string(version[1]))
		if err != nil {
			return err
		}
		if err := known.read(filepath.Join(common, "standardflags")); err != nil {
			return err
		}
	}
	found := answer{Flags: known.flags(), Gates: known.gates}
	slices.Sort(found.Gates)
	if len(found.Flags) == 0 {
		return fmt.Errorf("%s declares no flags in %v", args[0], args[1:])
	}
	return json.NewEncoder(os.Stdout).Encode(found)
}

// Where the sources lie; they are fetched if they are not there yet.
func sources(module string) (string, error) {
	// Outside of any module, so that no go.sum is written to.
	elsewhere, err := os.MkdirTemp("", "sidecar")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(elsewhere)
	command := exec.Command("go", "mod", "download", "-json", module)
	command.Dir = elsewhere
	command.Env = append(os.Environ(), "GOWORK=off")
	command.Stderr = os.Stderr
	output, failure := command.Output()
	var downloaded struct{ Dir, Error string }
	if err := json.Unmarshal(output, &downloaded); err != nil {
		return "", fmt.Errorf("go mod download %s: %w", module, errors.Join(failure, err))
	}
	if failure != nil || downloaded.Error != "" {
		return "", fmt.Errorf("go mod download %s: %s: %w", module, downloaded.Error, failure)
	}
	return downloaded.Dir, nil
}

// What the sources declare.
type declarations struct {
	files     []*ast.File
	constants map[string]string
	gates     []string
	isCommon  bool
}

func (d *declarations) read(folder string) error {
	paths, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return err
	}
	if len(paths) == 0 {
		return fmt.Errorf("%s holds no Go files any more", folder)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		d.files = append(d.files, file)
		for _, imported := range file.Imports {
			d.isCommon = d.isCommon || text(imported.Path) == library+"/standardflags"
		}
		ast.Inspect(file, func(node ast.Node) bool {
			if spec, ok := node.(*ast.ValueSpec); ok {
				d.constant(spec)
			}
			return true
		})
	}
	return nil
}

func (d *declarations) constant(spec *ast.ValueSpec) {
	kind, isQualified := spec.Type.(*ast.SelectorExpr)
	for i, value := range spec.Values {
		literal, ok := value.(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING || i >= len(spec.Names) {
			continue
		}
		d.constants[spec.Names[i].Name] = text(literal)
		if isQualified && kind.Sel.Name == "Feature" {
			d.gates = append(d.gates, text(literal))
		}
	}
}

// After all constants are known: some flags are named by them.
func (d *declarations) flags() []string {
	names := map[string]bool{}
	for _, file := range d.files {
		ast.Inspect(file, func(node ast.Node) bool {
			call, ok := node.(*ast.CallExpr)
			if !ok {
				return true
			}
			function, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			place, ok := declaring[function.Sel.Name]
			if !ok || place >= len(call.Args) {
				return true
			}
			switch name := call.Args[place].(type) {
			case *ast.BasicLit:
				names[text(name)] = true
			case *ast.Ident:
				names[d.constants[name.Name]] = true
			}
			return true
		})
	}
	delete(names, "")
	sorted := make([]string, 0, len(names))
	for name := range names {
		sorted = append(sorted, name)
	}
	slices.Sort(sorted)
	return sorted
}

// What a string literal says; nothing for other literals.
func text(literal *ast.BasicLit) string {
	said, err := strconv.Unquote(literal.Value)
	if err != nil || literal.Kind != token.STRING {
		return ""
	}
	return said
}
