package upstream

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"pipeline/gateway/internal/balance"
	"pipeline/gateway/internal/clock"
)

const askAgain = time.Second // after a health service that failed

// Watch reports the health of the server: the health service says it, and a server without one
// serves as soon as there is a connection.
func (c *grpcConn) Watch(ctx context.Context, report func(Health)) {
	pulse := &pulse{limits: c.checks.Checks, report: report}
	var checking sync.WaitGroup
	defer checking.Wait()
	if c.checks.HealthInterval > 0 {
		checking.Go(func() { c.check(ctx, pulse) })
	}
	for {
		err := c.follow(ctx, pulse.say)
		if ctx.Err() != nil {
			return
		}
		c.afterHealth(ctx, err, pulse.say)
	}
}

// follow listens to the health service until that ends.
func (c *grpcConn) follow(ctx context.Context, report func(Health)) error {
	watching, err := healthpb.NewHealthClient(c.conn).Watch(ctx, &healthpb.HealthCheckRequest{})
	for err == nil {
		var said *healthpb.HealthCheckResponse
		if said, err = watching.Recv(); err != nil {
			break
		}
		if said.GetStatus() == healthpb.HealthCheckResponse_SERVING {
			report(Health{State: StateServing})
		} else {
			report(Health{StateConnected, "it says " + said.GetStatus().String()})
		}
	}
	return err
}

// afterHealth draws the conclusion from the end of the health service's word, and waits until it
// is worth asking again.
func (c *grpcConn) afterHealth(ctx context.Context, err error, report func(Health)) {
	failed := status.Convert(err)
	connection := c.conn.GetState()
	switch {
	case failed.Code() == codes.Unimplemented && connection == connectivity.Ready:
		report(Health{State: StateServing})
		c.conn.WaitForStateChange(ctx, connectivity.Ready)
		report(Health{StateDown, "the connection was lost"})
	case connection == connectivity.Ready:
		report(Health{StateConnected, "its health is not known: " + failed.Message()})
		c.waitWhile(ctx, connectivity.Ready)
	default:
		report(Health{StateDown, failed.Message()})
		if connection == connectivity.TransientFailure {
			c.conn.WaitForStateChange(ctx, connectivity.TransientFailure) // it tries on its own
		}
	}
}

// waitWhile waits until the connection leaves a state, but not for long.
func (c *grpcConn) waitWhile(ctx context.Context, current connectivity.State) {
	waiting, cancel := context.WithTimeout(ctx, askAgain)
	defer cancel()
	c.conn.WaitForStateChange(waiting, current)
}

// check asks a server for its health again and again: one that was stopped, or hangs, keeps its connection and says nothing.
func (c *grpcConn) check(ctx context.Context, pulse *pulse) {
	client := healthpb.NewHealthClient(c.conn)
	for clock.Sleep(ctx, c.checks.HealthInterval) {
		if c.conn.GetState() != connectivity.Ready {
			continue // which Watch tells
		}
		asking, cancel := context.WithTimeout(ctx, c.checks.HealthTimeout)
		_, err := client.Check(asking, &healthpb.HealthCheckRequest{})
		cancel()
		switch code := status.Code(err); {
		case ctx.Err() != nil || code == codes.Unavailable: // the connection is gone
		default:
			pulse.check(code != codes.DeadlineExceeded) // who has no such service has answered
		}
	}
}

// pulse is what is known of a server: what it says of itself, and whether it answers.
type pulse struct {
	limits balance.Thresholds
	report func(Health)

	lock     sync.Mutex
	said     Health
	checks   balance.Checks
	isSilent bool
}

// say notes what a server says of itself, or its connection does.
func (p *pulse) say(now Health) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if now.State == StateDown || p.said.State == StateDown {
		p.checks, p.isSilent = balance.Checks{}, false // of another connection nothing is known
	}
	p.said = now
	p.tell()
}

// check notes whether a server has answered a check.
func (p *pulse) check(answered bool) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if was := p.isSilent; p.checks.Note(answered, p.limits) != was {
		p.isSilent = !was
		p.tell()
	}
}

// tell reports; the lock is held.
func (p *pulse) tell() {
	if p.isSilent && p.said.State == StateServing {
		p.report(Health{StateConnected, fmt.Sprintf("it has not answered %d checks of its health", p.limits.Unhealthy)})
		return
	}
	p.report(p.said)
}
