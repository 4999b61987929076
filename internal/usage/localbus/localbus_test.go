package localbus_test

import (
	"context"
	"errors"
	"testing"

	"github.com/tallygate/tallygate/internal/usage"
	"github.com/tallygate/tallygate/internal/usage/bustest"
	"github.com/tallygate/tallygate/internal/usage/localbus"
)

func TestConformance(t *testing.T) {
	bustest.Run(t, func(t *testing.T) bustest.Bus {
		bus := localbus.New(0)
		return bustest.Bus{Publisher: bus, Consumer: func(*testing.T) usage.Consumer { return bus }}
	})
}

func cell(minute int64) usage.Key { return usage.Key{Token: "t", Minute: minute} }

func records(minutes ...int64) usage.Batch {
	var batch usage.Batch
	for _, m := range minutes {
		batch.Records = append(batch.Records, usage.Record{Key: cell(m), Totals: usage.Totals{Admitted: m}})
	}
	return batch
}

// A full bus takes what it holds already, since that costs it nothing, and makes
// everything else wait.
func TestAFullBusBlocksOnlyNewCells(t *testing.T) {
	bus := localbus.New(2)
	ctx, cancel := context.WithCancel(context.Background())
	for range 3 {
		if err := bus.Publish(ctx, records(1, 2)); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if err := bus.Publish(ctx, records(3)); !errors.Is(err, context.Canceled) {
		t.Errorf("Publish into a full bus = %v", err)
	}
	waits := make(chan error)
	go func() { waits <- bus.Publish(context.Background(), records(3)) }()
	account := bustest.NewAccount()
	bustest.Consume(t, bus, account.Handle)
	if err := <-waits; err != nil {
		t.Error(err)
	}
	account.Until(t, func(r map[usage.Key]usage.Totals, _ map[string]usage.Event) bool { return len(r) == 3 })
}

func TestCloseDrains(t *testing.T) {
	bus := localbus.New(0)
	ctx := context.Background()
	if err := bus.Publish(ctx, records(1, 2, 3)); err != nil {
		t.Fatal(err)
	}
	bus.Close()
	bus.Close()
	if err := bus.Publish(ctx, records(4)); !errors.Is(err, localbus.ErrClosed) {
		t.Errorf("Publish after Close = %v", err)
	}
	account := bustest.NewAccount()
	if err := bus.Consume(ctx, account.Handle); err != nil {
		t.Fatal(err)
	}
	if n := len(account.Records()); n != 3 {
		t.Errorf("%d records after Close, want 3", n)
	}
}
