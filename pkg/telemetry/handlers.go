package telemetry

import (
	"context"
	"encoding/json"
	"net/http"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
)

// Live serves /healthz: 200 while the process lives, whatever its parts do. A
// supervisor restarts a process by it, and a restart repairs no database.
func (h *Health) Live() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		respond(w, http.StatusOK, struct {
			Status string `json:"status"`
		}{"alive"})
	})
}

// Ready serves /readyz: a [Report], with 200 when ready or degraded and with
// 503 when unready. A load balancer sends work by it.
func (h *Health) Ready() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		report := h.Report()
		status := http.StatusOK
		if report.Status == Unready {
			status = http.StatusServiceUnavailable
		}
		respond(w, status, report)
	})
}

func respond(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // fails only when the caller has gone
}

// Checker answers grpc.health.v1 for the named services, and for "" as the
// whole process, as /readyz does: serving when ready or degraded.
func (h *Health) Checker(services ...string) grpchealth.Checker {
	c := checker{health: h, services: map[string]bool{"": true}}
	for _, s := range services {
		c.services[s] = true
	}
	return c
}

type checker struct {
	health   *Health
	services map[string]bool
}

// Check implements [grpchealth.Checker].
func (c checker) Check(_ context.Context, req *grpchealth.CheckRequest) (*grpchealth.CheckResponse, error) {
	if !c.services[req.Service] {
		return nil, connect.NewError(connect.CodeNotFound, nil)
	}
	if c.health.Report().Status == Unready {
		return &grpchealth.CheckResponse{Status: grpchealth.StatusNotServing}, nil
	}
	return &grpchealth.CheckResponse{Status: grpchealth.StatusServing}, nil
}
