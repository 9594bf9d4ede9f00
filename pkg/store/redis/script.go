package redis

import (
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed scripts/*.lua
var sources embed.FS

// script is a Lua script, made of its parts in order.
type script struct{ text, sha string }

func newScript(parts ...string) *script {
	return scriptOf(source(append([]string{"base"}, parts...)...))
}

func scriptOf(text string) *script {
	sum := sha1.Sum([]byte(text))
	return &script{text: text, sha: hex.EncodeToString(sum[:])}
}

// source joins files of the folder.
func source(parts ...string) string {
	var b strings.Builder
	for _, p := range parts {
		text, err := sources.ReadFile("scripts/" + p + ".lua")
		if err != nil {
			panic(err) // the file is part of the program
		}
		b.Write(text)
	}
	return b.String()
}

var (
	admitScript     = newScript("jobs", "bucket", "schedule", "admit")
	turnScript      = newScript("jobs", "lanes", "limits", "relabel", "turn")
	heartbeatScript = newScript("jobs", "heartbeat")
	expiredScript   = newScript("jobs", "expired")
	endScript       = newScript("jobs", "end")
	idleScript      = newScript("idle")
	busyScript      = newScript("busy")
	cancelScript    = newScript("jobs", "cancel")
	replayScript    = newScript("jobs", "bucket", "trail", "replay")
	buryScript      = newScript("jobs", "trail", "bury")
	retryableScript = newScript("retryable")
	readyScript     = newScript("lanes", "ready")
	jobScript       = newScript("job")
	listScript      = newScript("jobs", "list")
	usageScript     = newScript("bucket", "usage")
	examineScript   = newScript("jobs", "examine")
	quotaScript     = newScript("quota")
	putScript       = newScript("bucket", "trail", "put")
	adoptScript     = newScript("adopt")
	raiseScript     = newScript("raise")
	trimScript      = newScript("jobs", "trim")
	trimTrailScript = newScript("trimtrail")
	recordScript    = newScript("trail", "record")
	registerScript  = newScript("register")
	unbusyScript    = newScript("unbusy")
	announceScript  = newScript("announce")
	finishScript    = newScript("feed", "finish")
	changesScript   = newScript("feed", "changes")
	tokensScript    = newScript("feed", "trail", "tokens")
	revokeScript    = newScript("feed", "trail", "revoke")
	touchScript     = newScript("touch")
	termScript      = newScript("term")
	eraseScript     = newScript("jobs", "erase")
	dropScript      = newScript("feed", "droptokens")
	erasedScript    = newScript("feed", "erased")
	forgetScript    = newScript("forget")
	settingScript   = newScript("setting", "getsetting")
	settingsScript  = newScript("setting", "listsettings")
	putSetting      = newScript("setting", "trail", "putsetting")
	deleteSetting   = newScript("setting", "trail", "delsetting")
	formatScript    = newScript("format")

	putScheduleScript    = newScript("trail", "schedule", "putschedule")
	deleteScheduleScript = newScript("trail", "deleteschedule")
	listSchedulesScript  = newScript("schedule", "listschedules")
	postponeScript       = newScript("trail", "schedule", "postpone")
	putTriggerScript     = newScript("trail", "puttrigger")
	listTriggersScript   = newScript("listtriggers")

	overrideScript = newScript("trail", "override")
	relabelScript  = newScript("jobs", "relabel", "relabelsome")
	queuesScript   = newScript("queues")
	aheadScript    = newScript("jobs", "ahead")
)

// policy says what may be done about a broken connection.
type policy int

const (
	once  policy = iota // what was sent may have been done: do not repeat it
	again               // repeating does no harm
)

const (
	attempts   = 3
	firstPause = 20 * time.Millisecond
	atOnce     = 500 // commands of one pipeline
)

// command is one command of a pipeline and what became of it.
type command struct {
	script *script // nil: a plain command
	key    string  // of the script
	args   []any   // of the script, or the whole plain command
	reply  any
	err    error
}

// on makes the run of a script on a space. The clock comes first.
func (s *Store) on(tag string, sc *script, args ...any) *command {
	at := int64(0)
	if s.now != nil {
		at = s.now().UnixMicro()
	}
	return &command{script: sc, key: s.key(tag, "ns"), args: append([]any{at}, args...)}
}

func plain(args ...any) *command { return &command{args: args} }

// single keeps the cluster client from repeating what may have been done.
type single struct{ *redis.Cmd }

// NoRetry implements [redis.Cmder].
func (single) NoRetry() bool { return true }

func (c *command) redis(ctx context.Context, whole bool) single {
	if c.script == nil {
		return single{redis.NewCmd(ctx, c.args...)}
	}
	args := make([]any, 0, len(c.args)+4)
	if whole {
		args = append(args, "eval", c.script.text)
	} else {
		args = append(args, "evalsha", c.script.sha)
	}
	return single{redis.NewCmd(ctx, append(append(args, 1, c.key), c.args...)...)}
}

// run sends commands in pipelines and gives each its reply or its error. The
// error is that of the first one that failed.
func (s *Store) run(ctx context.Context, p policy, cmds ...*command) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	var first error
	for from := 0; from < len(cmds); from += atOnce {
		part := cmds[from:min(from+atOnce, len(cmds))]
		s.pipeline(ctx, p, part)
		for _, c := range part {
			if c.err != nil && first == nil {
				first = c.err
			}
		}
	}
	return first
}

// pipeline sends commands together. Those that were not done, or may be
// repeated, are sent again after a pause; those whose script the server does
// not know at once, with its text.
func (s *Store) pipeline(ctx context.Context, p policy, cmds []*command) {
	todo, whole, pause := cmds, false, firstPause
	for try := 1; ; {
		s.exec(ctx, whole, todo)
		var unknown, failed []*command
		for _, c := range todo {
			switch {
			case c.err == nil:
			case starts(reply(c.err), "NOSCRIPT"):
				unknown = append(unknown, c)
			case untried(c.err), p == again && lost(c.err):
				failed = append(failed, c)
			}
		}
		switch {
		case len(unknown) > 0 && !whole:
			todo, whole = append(unknown, failed...), true
			continue
		case len(failed) == 0 || try == attempts:
			return
		}
		try++
		wait := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			wait.Stop()
			return
		case <-wait.C:
		}
		todo, pause = failed, 2*pause
	}
}

func (s *Store) exec(ctx context.Context, whole bool, cmds []*command) {
	pipe := s.db.Pipeline()
	sent := make([]single, len(cmds))
	for i, c := range cmds {
		sent[i] = c.redis(ctx, whole)
		_ = pipe.Process(ctx, sent[i]) // it only queues the command
	}
	_, err := pipe.Exec(ctx)
	for i, c := range cmds {
		c.reply, c.err = sent[i].Result()
		if c.err == redis.Nil {
			c.reply, c.err = nil, nil
		}
		if c.err == nil && c.reply == nil && err != nil && sent[i].Err() == nil && reply(err) == "" && err != redis.Nil {
			c.err = err // nothing was sent at all
		}
	}
}
