// Command cel answers what Kubernetes' own library says of device selectors: JSON lines in, JSON lines out.
//
// A line in is {"expression", "driver", "attributes", "capacity", "allowMultipleAllocations"}; a line out is
// {"compileError", "maxCost", "matchError", "match", "cost"}. Only the differential test of our CEL builds it.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/cel"
)

type question struct {
	Expression               string                                                  `json:"expression"`
	Driver                   string                                                  `json:"driver"`
	Attributes               map[resourcev1.QualifiedName]resourcev1.DeviceAttribute `json:"attributes"`
	Capacity                 map[resourcev1.QualifiedName]string                     `json:"capacity"`
	AllowMultipleAllocations *bool                                                   `json:"allowMultipleAllocations"`
}

type answer struct {
	CompileError string `json:"compileError"`
	MaxCost      uint64 `json:"maxCost"`
	MatchError   string `json:"matchError"`
	Match        bool   `json:"match"`
	Cost         uint64 `json:"cost"`
}

func ask(asked question) (said answer) {
	defer func() {
		if problem := recover(); problem != nil {
			said.MatchError = fmt.Sprintf("panic: %v", problem)
		}
	}()
	compiler := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true, EnableListTypeAttributes: true})
	compiled := compiler.CompileCELExpression(asked.Expression, cel.Options{})
	said.MaxCost = compiled.MaxCost
	if compiled.Error != nil {
		said.CompileError = compiled.Error.Error()
		return said
	}
	capacity := map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{}
	for name, text := range asked.Capacity {
		capacity[name] = resourcev1.DeviceCapacity{Value: resource.MustParse(text)}
	}
	device := cel.Device{
		Driver:                   asked.Driver,
		AllowMultipleAllocations: asked.AllowMultipleAllocations,
		Attributes:               asked.Attributes,
		Capacity:                 capacity,
	}
	match, details, err := compiled.DeviceMatches(context.Background(), device)
	said.Match = match
	if err != nil {
		said.MatchError = err.Error()
	}
	if details != nil && details.ActualCost() != nil {
		said.Cost = *details.ActualCost()
	}
	return said
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<20), 1<<26)
	out := bufio.NewWriter(os.Stdout)
	for lines.Scan() {
		var asked question
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		said, err := json.Marshal(ask(asked))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		out.Write(append(said, '\n'))
		out.Flush()
	}
}
