package client

import "time"

// Distrust shortens how long the worker goes on with a token that is refused.
func (w *Worker) Distrust(d time.Duration) { w.trust = d }

// Hasten shortens how long a draining worker waits for an answer.
func (w *Worker) Hasten(d time.Duration) { w.silence = d }
