package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/rs/zerolog"

	"flexiq/pkg/auth/embedded"
)

// Bounds of the embedded NATS server. JetStream holds only the leader's lease
// and unacknowledged trigger messages; its own defaults would take most of the
// host's memory.
const (
	natsMaxPayload   = 8 << 20
	natsMaxPending   = 64 << 20
	natsMaxMemory    = 64 << 20
	natsMaxStore     = 4 << 30
	natsReadyTimeout = 10 * time.Second
)

// embedNATS starts the NATS server inside this process and returns it when it
// accepts connections.
func embedNATS(listen, dir string, secure *tls.Config, authenticator *embedded.Authenticator, log zerolog.Logger) (*server.Server, error) {
	host, portText, err := net.SplitHostPort(listen)
	if err != nil {
		return nil, err
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return nil, err
	}
	if port == 0 {
		port = server.RANDOM_PORT
	} else if err := free(listen); err != nil {
		return nil, fmt.Errorf("cannot listen for NATS on %s: %w; choose another address with --nats-listen", listen, err)
	}
	opts := &server.Options{
		ServerName: "flexiqd",
		Host:       host, Port: port,
		NoSigs:     true,
		MaxPayload: natsMaxPayload, MaxPending: natsMaxPending,
		JetStream: true, StoreDir: filepath.Join(dir, "nats"),
		JetStreamMaxMemory: natsMaxMemory, JetStreamMaxStore: natsMaxStore,
		CustomClientAuthentication: authenticator,
		TLSConfig:                  secure, TLS: secure != nil,
	}
	s, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("cannot set up the embedded NATS server: %w", err)
	}
	authenticator.Attach(s)
	l := &natsLog{log: log.With().Str("component", "nats").Logger()}
	s.SetLoggerV2(l, false, false, false)
	s.Start()
	if !s.ReadyForConnections(natsReadyTimeout) {
		s.Shutdown()
		return nil, fmt.Errorf("the embedded NATS server did not start: %w", l.failure())
	}
	return s, nil
}

// free reports whether an address can be listened on now, with the system's
// own reason if not. The server itself would only log it.
func free(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			return op.Err
		}
		return err
	}
	return l.Close()
}

// natsLog writes the server's log as ours. A fatal message does not end the
// process; it is why the start failed.
type natsLog struct {
	log   zerolog.Logger
	mu    sync.Mutex
	fatal error
}

func (l *natsLog) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fatal == nil {
		return errors.New("no connection within " + natsReadyTimeout.String())
	}
	return l.fatal
}

// Noticef and the others are the server's logger interface.
func (l *natsLog) Noticef(f string, v ...any) { l.log.Debug().Msgf(f, v...) }

// Warnf logs a warning.
func (l *natsLog) Warnf(f string, v ...any) { l.log.Warn().Msgf(f, v...) }

// Errorf logs an error. What a client was refused is at debug level: a tenant
// could fill the log with it.
func (l *natsLog) Errorf(f string, v ...any) {
	text := fmt.Sprintf(f, v...)
	for _, refusal := range []string{"Permissions Violation", "Authorization Violation", "authentication error", "Maximum Payload Violation"} {
		if strings.Contains(text, refusal) {
			l.log.Debug().Msg(text)
			return
		}
	}
	l.log.Error().Msg(text)
}

// Debugf logs at debug level.
func (l *natsLog) Debugf(f string, v ...any) { l.log.Debug().Msgf(f, v...) }

// Tracef is not used: a trace would hold payloads.
func (l *natsLog) Tracef(string, ...any) {}

// Fatalf keeps the reason for the caller of embedNATS.
func (l *natsLog) Fatalf(f string, v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fatal == nil {
		l.fatal = fmt.Errorf(f, v...)
	}
	l.log.Error().Msgf(f, v...)
}
