// Command promql reads a JSON list of PromQL expressions and prints, as JSON, what each of them asks for, by
// Prometheus' own parser: the metrics with the labels they are selected by, and the labels results are grouped by.
// An expression that does not parse ends it with an error that quotes the expression.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// query is what one expression asks for.
type query struct {
	Selectors []selector `json:"selectors"`
	Grouping  []string   `json:"grouping"`
}

type selector struct {
	Metric string   `json:"metric"`
	Labels []string `json:"labels"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	var expressions []string
	if err := json.NewDecoder(os.Stdin).Decode(&expressions); err != nil {
		return fmt.Errorf("stdin must hold a JSON list of strings: %w", err)
	}
	queries := make([]query, 0, len(expressions))
	for _, expression := range expressions {
		parsed, err := parser.NewParser(parser.Options{}).ParseExpr(expression)
		if err != nil {
			return fmt.Errorf("%s: %w", expression, err)
		}
		queries = append(queries, read(parsed))
	}
	return json.NewEncoder(os.Stdout).Encode(queries)
}

func read(expression parser.Expr) query {
	found := query{Selectors: []selector{}, Grouping: []string{}}
	parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
		switch node := node.(type) {
		case *parser.VectorSelector:
			found.Selectors = append(found.Selectors, readSelector(node))
		case *parser.AggregateExpr:
			found.Grouping = append(found.Grouping, node.Grouping...)
		case *parser.BinaryExpr:
			if node.VectorMatching != nil {
				found.Grouping = append(found.Grouping, node.VectorMatching.MatchingLabels...)
				found.Grouping = append(found.Grouping, node.VectorMatching.Include...)
			}
		}
		return nil
	})
	return found
}

func readSelector(node *parser.VectorSelector) selector {
	read := selector{Metric: node.Name, Labels: []string{}}
	for _, matcher := range node.LabelMatchers {
		if matcher.Name != labels.MetricName {
			read.Labels = append(read.Labels, matcher.Name)
		}
	}
	return read
}
