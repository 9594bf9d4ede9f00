package storetest_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"flexiq/pkg/store"
	"flexiq/pkg/store/internal/model"
	"flexiq/pkg/store/storetest"
)

// worlds holds the stores in memory by address.
var worlds sync.Map

func world(address string) *model.World {
	w, _ := worlds.Load(address)
	return w.(*model.World)
}

// memory is the reference store as a backend.
var memory = storetest.Backend{
	InProcess: true,
	Create: func(t testing.TB) string {
		w := model.New()
		address := fmt.Sprintf("%p", w)
		worlds.Store(address, w)
		t.Cleanup(func() { worlds.Delete(address) })
		return address
	},
	Open: func(_ context.Context, address string, now func() time.Time) (store.Store, error) {
		if now == nil {
			now = time.Now
		}
		return world(address).Open(now), nil
	},
	Scribble: func(_ testing.TB, address, namespace string, raw []byte) {
		world(address).Scribble(namespace, raw)
	},
	Drifts: map[string]func(testing.TB, string, string){
		"a count": func(_ testing.TB, address, namespace string) { world(address).Skew(namespace, 3) },
	},
	Poison: func(_ testing.TB, address, task string) func() {
		world(address).Poison(task)
		return func() { world(address).Poison("") }
	},
}

func TestMain(m *testing.M) { storetest.Main(m, memory) }

func TestMemory(t *testing.T) { storetest.Run(t, memory) }
