// Answers claims with the reference allocator, k8s.io/dynamic-resource-allocation: a world a line in, an answer a line out.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

type held struct {
	Device   string                      `json:"device"`
	Driver   string                      `json:"driver"`
	Pool     string                      `json:"pool"`
	ShareID  string                      `json:"shareID"`
	Consumed structured.ConsumedCapacity `json:"consumed"`
}

type world struct {
	Slices  []*resourceapi.ResourceSlice `json:"slices"`
	Classes []*resourceapi.DeviceClass   `json:"classes"`
	Claims  []*resourceapi.ResourceClaim `json:"claims"`
	Node    *v1.Node                     `json:"node"`
	Held    []held                       `json:"held"`
	Lists   bool                         `json:"lists"`
	Derived bool                         `json:"derived"`
	Groups  bool                         `json:"groups"`
	Ranges  bool                         `json:"ranges"`
	Runs    int                          `json:"runs"`
}

type lister []*resourceapi.DeviceClass

func (l lister) List() ([]*resourceapi.DeviceClass, error) { return l, nil }
func (l lister) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, c := range l {
		if c.Name == name {
			return c, nil
		}
	}
	return nil, fmt.Errorf("not found")
}

type answer struct {
	Results []resourceapi.AllocationResult `json:"results"`
	Error   string                         `json:"error"`
	Timeout bool                           `json:"timeout"`
	Micros  float64                        `json:"micros"`
}

func run(w world, cache *cel.Cache) (out answer) {
	defer func() {
		if r := recover(); r != nil {
			out.Error = fmt.Sprintf("panic: %v", r)
		}
	}()
	f := structured.Features{AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true, DeviceTaints: true, PartitionableDevices: true, PrioritizedList: true, ListTypeAttributes: w.Lists, DerivedAttributes: w.Derived, CompatibilityGroups: w.Groups, FractionalCapacityRange: w.Ranges}
	state := structured.AllocatedState{AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](), AggregatedCapacity: structured.NewConsumedCapacityCollection()}
	for _, h := range w.Held {
		id := structured.MakeDeviceID(h.Driver, h.Pool, h.Device)
		if h.ShareID != "" {
			uid := types.UID(h.ShareID)
			state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, &uid))
			if h.Consumed != nil {
				state.AggregatedCapacity.Insert(structured.DeviceConsumedCapacity{DeviceID: id, ConsumedCapacity: h.Consumed})
			}
		} else {
			state.AllocatedDevices.Insert(id)
		}
	}
	runs := w.Runs
	if runs == 0 {
		runs = 1
	}
	start := time.Now()
	for i := 0; i < runs; i++ {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(timeout)*time.Second)
		a, err := structured.NewAllocator(ctx, f, state, lister(w.Classes), w.Slices, cache)
		if err != nil {
			cancel()
			out.Error = err.Error()
			return
		}
		res, err := a.Allocate(ctx, w.Node, w.Claims)
		cancel()
		out.Results = res
		if err != nil {
			out.Error = err.Error()
			out.Timeout = strings.Contains(out.Error, "aborted")
		}
	}
	out.Micros = float64(time.Since(start).Microseconds()) / float64(runs)
	return
}

var timeout = 1

func main() {
	if len(os.Args) > 1 {
		fmt.Sscan(os.Args[1], &timeout)
	}
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(make([]byte, 1<<20), 1<<28)
	out := json.NewEncoder(os.Stdout)
	caches := map[bool]*cel.Cache{}
	for _, l := range []bool{false, true} {
		caches[l] = cel.NewCache(100, cel.Features{EnableConsumableCapacity: true, EnableListTypeAttributes: l})
	}
	for in.Scan() {
		var w world
		if err := json.Unmarshal(in.Bytes(), &w); err != nil {
			out.Encode(answer{Error: "decode: " + err.Error()})
			continue
		}
		out.Encode(run(w, caches[w.Lists]))
	}
}
