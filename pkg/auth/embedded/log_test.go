package embedded_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"flexiq/pkg/auth"
	"flexiq/pkg/auth/embedded"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

// serverLog keeps what a NATS server writes, at every level.
type serverLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *serverLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *serverLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *serverLog) Noticef(f string, v ...any) { fmt.Fprintf(l, f+"\n", v...) }
func (l *serverLog) Warnf(f string, v ...any)   { fmt.Fprintf(l, f+"\n", v...) }
func (l *serverLog) Errorf(f string, v ...any)  { fmt.Fprintf(l, f+"\n", v...) }
func (l *serverLog) Debugf(f string, v ...any)  { fmt.Fprintf(l, f+"\n", v...) }
func (l *serverLog) Tracef(f string, v ...any)  { fmt.Fprintf(l, f+"\n", v...) }
func (l *serverLog) Fatalf(f string, v ...any)  { fmt.Fprintf(l, f+"\n", v...) }

// Neither our log nor the server's shows a token, wherever the client put it:
// the one that is refused for want of storage is a valid one.
func TestTokensAreNotLogged(t *testing.T) {
	log := new(serverLog)
	src := &source{byID: map[string]store.Token{}, err: errors.New("disk on fire")}
	a := embedded.New(auth.NewVerifier(src, time.Now), "flexiq", "service-password", zerolog.New(log))
	o := testkit.NATSOptions(t)
	o.CustomClientAuthentication = a
	s := testkit.StartNATS(t, o)
	s.SetLoggerV2(server.Logger(log), true, false, false)
	const secret = "abcdefghijklmnopqrstuvwxyz234567"
	const token = "fqt.lark.aaaaaaaaaaaaaaaa." + secret
	for range 2 {
		for _, shown := range []nats.Option{nats.Token(token), nats.UserInfo(token, ""), nats.UserInfo("x", token)} {
			if _, err := nats.Connect(s.ClientURL(), shown); !errors.Is(err, nats.ErrAuthorization) {
				t.Errorf("connected: %v", err)
			}
		}
		src.mu.Lock()
		src.err = nil // then, with storage, as an unknown token
		src.mu.Unlock()
	}
	s.Shutdown()
	s.WaitForShutdown()
	for _, want := range []string{"disk on fire", "token not valid", "authentication error"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q", want)
		}
	}
	if strings.Contains(log.String(), secret) {
		t.Errorf("a secret is in the log:\n%s", log.String())
	}
}
