// Prints, as JSON, which fields and capabilities the external storage suite of Kubernetes' e2e tests knows in the
// description of a driver. The suite itself ignores what it does not know, so a misspelt name there goes unnoticed.
//
//	testdriver MODULE
//
// reads the sources of k8s.io/kubernetes in the version that the Go module in the folder MODULE names.
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
	"strconv"
)

const (
	external  = "test/e2e/storage/external/external.go"
	framework = "test/e2e/storage/framework/testdriver.go"
	volume    = "test/e2e/framework/volume/fixtures.go"
)

// Fields by their names; those of a struct, or of the elements of a list of structs, have fields of their own.
type fields map[string]fields

type answer struct {
	Fields       fields   `json:"fields"`
	Capabilities []string `json:"capabilities"`
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: testdriver MODULE")
	}
	root, err := sources(args[0])
	if err != nil {
		return err
	}
	known := suite{types: map[string]ast.Expr{}}
	for _, file := range []string{external, framework, volume} {
		if err := known.read(filepath.Join(root, file)); err != nil {
			return err
		}
	}
	definition, found := known.types["driverDefinition"]
	if !found {
		return fmt.Errorf("%s has no type driverDefinition any more", external)
	}
	if len(known.capabilities) == 0 {
		return fmt.Errorf("%s has no constants of type Capability any more", framework)
	}
	return json.NewEncoder(os.Stdout).Encode(answer{known.fields(definition), known.capabilities})
}

// Where the sources lie; they are fetched if they are not there yet.
func sources(module string) (string, error) {
	command := exec.Command("go", "mod", "download", "-json", "k8s.io/kubernetes")
	command.Dir = module
	command.Env = append(os.Environ(), "GOWORK=off")
	command.Stderr = os.Stderr
	output, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("go mod download k8s.io/kubernetes: %w", err)
	}
	var downloaded struct{ Dir string }
	if err := json.Unmarshal(output, &downloaded); err != nil {
		return "", err
	}
	return downloaded.Dir, nil
}

// What the sources declare.
type suite struct {
	types        map[string]ast.Expr
	capabilities []string
}

func (s *suite) read(path string) error {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	for _, declaration := range file.Decls {
		general, ok := declaration.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range general.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				s.types[spec.Name.Name] = spec.Type
			case *ast.ValueSpec:
				s.capability(spec)
			}
		}
	}
	return nil
}

func (s *suite) capability(spec *ast.ValueSpec) {
	if kind, ok := spec.Type.(*ast.Ident); !ok || kind.Name != "Capability" {
		return
	}
	for _, value := range spec.Values {
		if literal, ok := value.(*ast.BasicLit); ok {
			if text, err := strconv.Unquote(literal.Value); err == nil {
				s.capabilities = append(s.capabilities, text)
			}
		}
	}
}

// The fields of a type; nil for one that has none.
func (s *suite) fields(of ast.Expr) fields {
	switch of := of.(type) {
	case *ast.StructType:
		found := fields{}
		for _, field := range of.Fields.List {
			for _, name := range field.Names {
				found[name.Name] = s.fields(field.Type)
			}
		}
		return found
	case *ast.StarExpr:
		return s.fields(of.X)
	case *ast.ArrayType:
		return s.fields(of.Elt)
	case *ast.SelectorExpr:
		return s.named(of.Sel.Name)
	case *ast.Ident:
		return s.named(of.Name)
	}
	return nil
}

func (s *suite) named(name string) fields {
	if declared, found := s.types[name]; found {
		return s.fields(declared)
	}
	return nil
}
