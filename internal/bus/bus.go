// Package bus opens the bus that the configuration names: a Redis stream or Kafka.
package bus

import (
	"context"
	"fmt"

	"github.com/tallygate/tallygate/internal/config"
	"github.com/tallygate/tallygate/internal/service"
	"github.com/tallygate/tallygate/internal/usage"
	"github.com/tallygate/tallygate/internal/usage/kafkabus"
	"github.com/tallygate/tallygate/internal/usage/streams"
)

// Bus carries usage records and events; close it when nobody uses it any more.
type Bus struct {
	usage.Publisher
	usage.Consumer
	Close func()
}

// Open opens the bus of c for service s, whose readiness depends on it from then on.
// It fails when the bus cannot be reached.
func Open(ctx context.Context, c *config.Config, s *service.Service) (*Bus, error) {
	if c.Bus.Kind == "kafka" {
		return openKafka(ctx, c.Bus, s)
	}
	client, err := service.NewRedis(c.Redis)
	if err != nil {
		return nil, err
	}
	reachable := func(ctx context.Context) error { return service.PingRedis(ctx, client, c.Redis) }
	if err := reachable(ctx); err != nil {
		_ = client.Close()
		return nil, err
	}
	s.Health.Add("bus", reachable)
	b := streams.New(client, streams.Options{Stream: c.Bus.Stream, Group: c.Bus.Group, ClaimAfter: c.Bus.ClaimAfter, Log: s.Log})
	return &Bus{b, b, func() { _ = client.Close() }}, nil
}

func openKafka(ctx context.Context, c config.Bus, s *service.Service) (*Bus, error) {
	options, err := kafkabus.Parse(string(c.URL))
	if err != nil {
		return nil, fmt.Errorf("bus.url: %w", err)
	}
	options.Group, options.Log = c.Group, s.Log
	b, err := kafkabus.New(options)
	if err != nil {
		return nil, fmt.Errorf("bus.url: %w", err)
	}
	if err := b.Check(ctx); err != nil {
		b.Close()
		return nil, fmt.Errorf("bus.url: %w", err)
	}
	s.Health.Add("bus", b.Check)
	return &Bus{b, b, b.Close}, nil
}
