package dispatchgate

import (
	"testing"

	"go.uber.org/goleak"

	"flexiq/pkg/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(servers{m}) }

// servers runs the tests and stops the databases that they shared.
type servers struct{ *testing.M }

func (s servers) Run() int {
	defer testkit.StopRedis()
	defer testkit.StopPostgres()
	return s.M.Run()
}
