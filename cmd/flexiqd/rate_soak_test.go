//go:build soak

package main

import (
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/client"
	"flexiq/pkg/testkit"
)

// TestSoakIdleRate: after ten idle minutes a bucket has one capacity, and a
// service that is killed and started again gives none away.
func TestSoakIdleRate(t *testing.T) {
	const idle, rate, burst = 10 * time.Minute, 5, 100
	dir := home(t)
	type installation struct {
		kind    string
		restart func()
		c       *client.Client
	}
	var all []installation
	for kind, make := range stores {
		data := filepath.Join(dir, kind)
		args := append([]string{"--data-dir=" + data, "--nats-listen=127.0.0.1:" + testkit.FreePort(t), "--http-listen=127.0.0.1:0"}, make(t, dir).args...)
		p := spawn(t, args...)
		c := dial(t, data, "default", "")
		limit(t, c, &flexiqv1.NamespaceQuota{EnqueueRate: proto.String("5/s")})
		all = append(all, installation{kind, func() { p.kill(); spawn(t, args...) }, c})
	}
	time.Sleep(idle) // idling is the case
	for _, i := range all {
		t.Run(i.kind, func(t *testing.T) {
			soak := testkit.StartSoak(t, "idle-rate-"+i.kind, "a rate of 5/s after ten idle minutes, and after the service was killed")
			n, took := flood(t, i.c, burst)
			soak.Figure("burst", "%d of %d calls admitted in %s", n, burst, took.Round(time.Millisecond))
			lawful := rate + int(took.Seconds()*rate)
			soak.Check(n >= rate && n <= lawful, "%d admitted, %d to %d are lawful", n, rate, lawful)

			spent := time.Now()
			i.restart()
			n, _ = flood(t, i.c, burst)
			away := time.Since(spent)
			lawful = int(away.Seconds()*rate) + 1 // one that was half refilled
			soak.Figure("after the kill", "%d of %d calls admitted, %s after the last one before it", n, burst, away.Round(time.Millisecond))
			soak.Check(n <= lawful, "%d admitted, at most %d are lawful", n, lawful)
		})
	}
}
