package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	stdlog "log"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"connectrpc.com/grpchealth"
	"github.com/rs/zerolog"

	"flexiq/pkg/bus"
	"flexiq/pkg/fault"
	"flexiq/pkg/rpc"
	"flexiq/pkg/store"
	"flexiq/pkg/telemetry"
	"flexiq/services/config"
)

// openCredentials makes the first tokens of an empty store and tells the
// command line of this user where they are.
func (d *daemon) openCredentials(ctx context.Context) error {
	dir := d.opts.DataDir
	free, err := lockCredentials(dir)
	if err != nil {
		return err
	}
	defer free()
	if _, err := firstTokens(ctx, d.store, dir, credentials{NATSURL: d.natsURL, HTTPURL: d.httpURL}); err != nil {
		return fmt.Errorf("cannot write the first credentials: %w", err)
	}
	c, err := readCredentials(credentialsFile(dir))
	if err == nil {
		err = checkPrivate(credentialsFile(dir))
	}
	if err != nil {
		d.warnOfCredentials(err)
		return nil
	}
	if err := c.refresh(dir, d.natsURL, d.httpURL); err != nil {
		return fmt.Errorf("cannot refresh the credentials file: %w", err)
	}
	if err := c.saveContext(dir, d.opts.TLSCA); err != nil {
		d.log.Warn().Err(err).Msg("the client context local was not saved")
		d.noContext = true
	}
	d.health.Add(telemetry.Check{Name: "credentials", Run: d.checkCredentials})
	return nil
}

// warnOfCredentials tells operators of a credentials file that is missing or open to
// others. With an outside NATS server a data folder without one is usual.
func (d *daemon) warnOfCredentials(problem error) {
	if d.opts.NATSURL != "" && errors.Is(problem, fs.ErrNotExist) {
		return
	}
	d.log.Warn().Err(problem).Msg("the credentials file cannot be used")
	problem = fault.Wrap(problem, fault.Internal, "the credentials file in the data folder is missing, damaged or readable by others")
	d.health.Add(telemetry.Check{Name: "credentials", Run: func(context.Context) error { return problem }})
}

// credentialsWarning is how long before their end health tells of tokens that
// nobody else would renew.
const credentialsWarning = 14 * 24 * time.Hour

// checkCredentials looks at the file as it is now: its tokens may have been
// replaced while the process runs.
func (d *daemon) checkCredentials(ctx context.Context) error {
	c, err := readCredentials(credentialsFile(d.opts.DataDir))
	if err != nil {
		return err
	}
	var errs []error
	for name, text := range c.Tokens {
		id, err := tokenID(text)
		if err != nil {
			return fmt.Errorf("the %s token in the credentials file: %w", name, err)
		}
		t, err := d.store.Token(ctx, id)
		switch {
		case fault.Is(err, fault.NotFound):
			errs = append(errs, fmt.Errorf("the %s token in the credentials file is of another store", name))
		case err != nil:
			return err
		case !t.RevokedAt.IsZero():
			errs = append(errs, fmt.Errorf("the %s token in the credentials file is revoked", name))
		case time.Until(t.ExpiresAt) < credentialsWarning:
			errs = append(errs, fmt.Errorf("the %s token in the credentials file ends at %s; flexiqd init --rotate replaces it", name, t.ExpiresAt.Format(time.RFC3339)))
		}
	}
	return errors.Join(errs...)
}

// serve opens the doors and starts everything that runs beside them.
func (d *daemon) serve(ctx context.Context) error {
	d.run("changes", d.poller.Run)
	d.run("progress", func(ctx context.Context) error {
		return config.Report(ctx, d.name, d.poller, d.conn.PublishProgress)
	})
	d.run("token use", d.touchTokens)
	for _, s := range d.parts() {
		d.run(s.name, s.Run)
		if s.methods == nil {
			continue
		}
		e, err := d.conn.Serve(s.name, s.methods, d.verifier)
		if err != nil {
			return fmt.Errorf("cannot serve %s on NATS: %w", s.name, err)
		}
		d.endpoints = append(d.endpoints, e)
	}
	d.http = rpc.NewServer(d.routes())
	d.http.TLSConfig = d.cert.config()
	d.http.ErrorLog = stdlog.New(zerologDebug{d.log}, "", 0)
	d.run("http", func(context.Context) error {
		serve := d.http.Serve
		if d.cert != nil {
			serve = func(l net.Listener) error { return d.http.ServeTLS(l, "", "") }
		}
		if err := serve(d.listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("http: %w", err)
		}
		return nil
	})
	return d.untilReady(ctx)
}

// zerologDebug takes what the HTTP server says about single connections, such as
// failed handshakes. Anybody could fill the log with it, so it is at debug level.
type zerologDebug struct{ log zerolog.Logger }

func (w zerologDebug) Write(p []byte) (int, error) {
	w.log.Debug().Str("component", "http").Msg(strings.TrimSpace(string(p)))
	return len(p), nil
}

// untilReady waits for the first answer of what runs beside the doors, so that
// the process is ready when it says so.
func (d *daemon) untilReady(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !d.poller.Fresh() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.failed.Done():
			return d.running.Wait()
		case <-tick.C:
		}
	}
	return nil
}

// part is a chosen service under its name.
type part struct {
	service
	name    string
	methods []rpc.Method
	close   func(context.Context) error
}

// parts lists the chosen services.
func (d *daemon) parts() []part {
	var out []part
	if s := d.admission; s != nil {
		out = append(out, part{s, admissionService, s.Methods(), s.Close})
	}
	if s := d.dispatchgate; s != nil {
		out = append(out, part{s, dispatchgateService, s.Methods(), s.Close})
	}
	if s := d.config; s != nil {
		out = append(out, part{s, configService, s.Methods(), nil})
	}
	if s := d.retention; s != nil {
		out = append(out, part{s, retentionService, nil, nil})
	}
	return out
}

// routes is everything that HTTP serves.
func (d *daemon) routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", rpc.Handler(d.methods, d.verifier, rpc.HandlerOptions{Log: d.log, Metrics: d.calls}))
	mux.Handle(grpchealth.NewHandler(d.health.Checker(d.served()...)))
	if d.admission != nil {
		mux.Handle("POST /v1/triggers/{namespace}/{name}", d.admission.Triggers(d.verifier.Attempts()))
	}
	mux.Handle("GET /healthz", d.health.Live())
	mux.Handle("GET /readyz", d.health.Ready())
	mux.Handle("GET /metrics", telemetry.MetricsHandler(d.reg))
	return mux
}

// served lists the protobuf services that this process serves.
func (d *daemon) served() []string {
	var names []string
	for _, m := range d.methods {
		if !slices.Contains(names, m.Service) {
			names = append(names, m.Service)
		}
	}
	return names
}

// run starts a part that lives as long as the process. Its error ends the process.
func (d *daemon) run(name string, f func(context.Context) error) {
	d.running.Go(func() error {
		err := f(d.failed)
		if err != nil && d.failed.Err() == nil {
			d.log.Error().Err(err).Str("part", name).Msg("a part failed; the process stops")
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
}

// hinted takes a hint that an object changed, ours or another process's.
func (d *daemon) hinted(kind store.Kind, key string, revision int64) {
	d.caches.Hint(kind, key, revision)
	d.tell(kind, key)
}

// changed takes what the poll of the store found; nil means anything may have changed.
func (d *daemon) changed(changes []store.Change) {
	d.caches.Changed(changes)
	if changes == nil {
		d.tell(store.KindDefaultQuota, "")
	}
	for _, c := range changes {
		d.tell(c.Kind, c.Key)
	}
}

// tell passes a change on to the services that act on it.
func (d *daemon) tell(kind store.Kind, key string) {
	if kind == store.KindDefaultQuota {
		key = "" // every namespace may be concerned
	}
	if d.dispatchgate != nil && kind != store.KindToken {
		d.dispatchgate.QuotaChanged(key)
	}
	if d.config != nil {
		d.config.Changed(kind, key)
	}
}

// touchInterval is how often the store learns when tokens were last used.
const touchInterval = time.Minute

// touchTokens records when tokens were last used. It is for people and may be
// lost, so an error is only logged.
func (d *daemon) touchTokens(ctx context.Context) error {
	tick := time.NewTicker(touchInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if used := d.verifier.TakeUsed(); len(used) > 0 {
			if err := d.store.TouchTokens(ctx, used); err != nil {
				d.log.Warn().Err(err).Msg("the last use of tokens was not recorded")
			}
		}
	}
}

// stop takes the process down so that no answer is lost: the gate answers its
// parked claims, the doors take nothing new and finish what they have, the
// services flush, and only then the connection, the server and the store close.
// It also undoes a start that failed half way.
func (d *daemon) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	d.health.Stop()
	d.stopRuns()
	errs := []error{d.closeDoors(ctx)}
	for _, p := range d.parts() {
		if p.close != nil {
			errs = append(errs, p.close(ctx))
		}
	}
	errs = append(errs, d.running.Wait())
	d.events.Close()
	if d.callout != nil {
		d.callout.Close(ctx)
	}
	if d.conn != nil {
		d.conn.Close(ctx)
	}
	if d.caches.Quotas != nil {
		d.caches.Close()
	}
	if d.nats != nil {
		d.nats.Shutdown()
		d.nats.WaitForShutdown()
	}
	if d.store != nil {
		errs = append(errs, d.store.Close())
	}
	if d.dir != nil {
		errs = append(errs, d.dir.Close())
	}
	err := errors.Join(errs...)
	d.log.Info().Err(err).Msg("stopped")
	return err
}

// closeDoors closes NATS and HTTP at once, each waiting for its calls in flight.
func (d *daemon) closeDoors(ctx context.Context) error {
	done := make(chan error, len(d.endpoints)+1)
	for _, e := range d.endpoints {
		go func(e *bus.Endpoints) { done <- e.Stop(ctx) }(e)
	}
	switch {
	case d.http != nil:
		go func() { done <- d.http.Shutdown(ctx) }()
	case d.listener != nil:
		done <- d.listener.Close()
	default:
		done <- nil
	}
	var errs []error
	for range cap(done) {
		errs = append(errs, <-done)
	}
	return errors.Join(errs...)
}

// greet tells a person where everything is.
func (d *daemon) greet(io stdio) {
	d.log.Info().Strs("services", d.opts.Services).Str("http", d.httpURL).Str("nats", d.natsURL).Msg("serving")
	lines := [][2]string{{"HTTP and gRPC", d.httpURL}, {"NATS", redactURL(d.natsURL)}, {"Store", redactURL(d.opts.Store)}}
	if _, err := os.Stat(credentialsFile(d.opts.DataDir)); err == nil {
		lines = append(lines, [2]string{"Credentials", credentialsFile(d.opts.DataDir)})
	} else if d.opts.NATSURL == "" {
		lines = append(lines, [2]string{"Credentials", "missing: the tokens of the first start are not in " + d.opts.DataDir})
	}
	if d.noContext {
		lines = append(lines, [2]string{"Command line", "has another context local; add one for here:"},
			[2]string{"", "fq context add NAME --server " + redactURL(d.natsURL) + ", with the token default of the credentials"})
	}
	fmt.Fprintln(io.out, "FlexiQ is ready. Stop it with Ctrl-C.")
	for _, l := range lines {
		fmt.Fprintf(io.out, "  %-14s %s\n", l[0], l[1])
	}
}
