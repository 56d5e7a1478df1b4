// Short round trips of Go's Kafka clients. One program, one subcommand per round trip, so that it is built
// once. Each prints one JSON object of what it saw; the Python test beside it says what should have been seen.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"time"
)

const deadline = 60 * time.Second

type roundTrip func(ctx context.Context, bootstrap, topic string) (map[string]any, error)

var roundTrips = map[string]roundTrip{
	"franz-plain":        franzPlain,
	"franz-classic":      franzClassic,
	"franz-next":         franzNext,
	"franz-transactions": franzTransactions,
	"sarama-plain":       saramaPlain,
	"sarama-group":       saramaGroup,
	"sarama-transaction": saramaTransaction,
	"kafka-go":           kafkaGo,
}

func main() {
	if len(os.Args) != 4 || roundTrips[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: clients ROUND-TRIP BOOTSTRAP TOPIC")
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	seen, err := roundTrips[os.Args[1]](ctx, os.Args[2], os.Args[3])
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(seen); err != nil {
		panic(err)
	}
}

func values(from, to int) []string {
	var made []string
	for number := from; number < to; number++ {
		made = append(made, fmt.Sprintf("value %03d", number))
	}
	return made
}

func sorted(values []string) []string {
	sort.Strings(values)
	return values
}
