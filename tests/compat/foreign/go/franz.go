package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const partitions = 3

func franz(bootstrap string, more ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(bootstrap), kgo.ClientID("franz-go")}, more...)...)
}

// franzCreate makes the topic and returns the client that did, with its admin face.
func franzCreate(ctx context.Context, bootstrap, topic string) (*kgo.Client, *kadm.Client, error) {
	client, err := franz(bootstrap)
	if err != nil {
		return nil, nil, err
	}
	admin := kadm.NewClient(client)
	if _, err := admin.CreateTopic(ctx, partitions, 1, nil, topic); err != nil {
		return nil, nil, err
	}
	return client, admin, nil
}

func franzProduce(ctx context.Context, client *kgo.Client, topic string, values []string) error {
	var records []*kgo.Record
	for _, value := range values {
		records = append(records, &kgo.Record{Topic: topic, Key: []byte(value), Value: []byte(value)})
	}
	return client.ProduceSync(ctx, records...).FirstErr()
}

// franzPoll returns exactly count values, in no order.
func franzPoll(ctx context.Context, client *kgo.Client, count int) ([]string, error) {
	var found []string
	for len(found) < count {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			return nil, fmt.Errorf("after %d of %d records: %w", len(found), count, err)
		}
		for _, failed := range fetches.Errors() {
			return nil, fmt.Errorf("%s-%d: %w", failed.Topic, failed.Partition, failed.Err)
		}
		fetches.EachRecord(func(record *kgo.Record) { found = append(found, string(record.Value)) })
	}
	return sorted(found), nil
}

func franzPlain(ctx context.Context, bootstrap, topic string) (map[string]any, error) {
	client, admin, err := franzCreate(ctx, bootstrap, topic)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	codecs := []kgo.CompressionCodec{
		kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression(),
	}
	for number, codec := range codecs {
		producer, err := franz(bootstrap, kgo.ProducerBatchCompression(codec))
		if err != nil {
			return nil, err
		}
		if err := franzProduce(ctx, producer, topic, values(number*20, number*20+20)); err != nil {
			return nil, err
		}
		producer.Close()
	}
	consumer, err := franz(bootstrap, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	found, err := franzPoll(ctx, consumer, 100)
	if err != nil {
		return nil, err
	}
	ends, err := admin.ListEndOffsets(ctx, topic)
	if err != nil {
		return nil, err
	}
	var end int64
	ends.Each(func(offset kadm.ListedOffset) { end += offset.Offset })
	details, err := admin.ListTopics(ctx, topic)
	if err != nil {
		return nil, err
	}
	if _, err := admin.DeleteTopics(ctx, topic); err != nil {
		return nil, err
	}
	return map[string]any{"values": found, "end": end, "partitions": len(details[topic].Partitions)}, nil
}

func franzClassic(ctx context.Context, bootstrap, topic string) (map[string]any, error) {
	return franzGroup(ctx, bootstrap, topic, "classic")
}

// franzNext uses the group protocol of KIP-848, which this client keeps behind a value in its context.
func franzNext(ctx context.Context, bootstrap, topic string) (map[string]any, error) {
	//nolint:staticcheck // the client asks for this very string
	return franzGroup(context.WithValue(ctx, "opt_in_kafka_next_gen_balancer_beta", true), bootstrap, topic, "consumer")
}

// franzGroup reads with one member, commits, then reads the rest with two others that share the partitions.
func franzGroup(ctx context.Context, bootstrap, topic, protocol string) (map[string]any, error) {
	client, admin, err := franzCreate(ctx, bootstrap, topic)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	if err := franzProduce(ctx, client, topic, values(0, 50)); err != nil {
		return nil, err
	}
	group := topic + "-group"
	member := func() (*kgo.Client, error) {
		return franz(bootstrap, kgo.WithContext(ctx), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit())
	}
	first, err := member()
	if err != nil {
		return nil, err
	}
	early, err := franzPoll(ctx, first, 50)
	if err != nil {
		return nil, err
	}
	if err := first.CommitUncommittedOffsets(ctx); err != nil {
		return nil, err
	}
	first.Close()
	if err := franzProduce(ctx, client, topic, values(50, 100)); err != nil {
		return nil, err
	}
	late, err := franzShared(ctx, member, 50)
	if err != nil {
		return nil, err
	}
	committed, err := admin.FetchOffsets(ctx, group)
	if err != nil {
		return nil, err
	}
	var total int64
	committed.Each(func(offset kadm.OffsetResponse) { total += offset.At })
	// Groups of the other protocol are not listed.
	listed, err := admin.ListGroupsByType(ctx, []string{protocol})
	if err != nil {
		return nil, err
	}
	return map[string]any{
		"early": early, "late": late, "committed": total, "listed": listed[group].Group == group,
	}, nil
}

// franzShared reads count records with two members; what was committed before must not come again.
func franzShared(ctx context.Context, member func() (*kgo.Client, error), count int) ([]string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	found := make(chan string)
	failed := make(chan error, 2)
	for range 2 {
		client, err := member()
		if err != nil {
			return nil, err
		}
		defer client.Close()
		go func() {
			for ctx.Err() == nil {
				fetches := client.PollFetches(ctx)
				if err := fetches.Err(); err != nil && !errors.Is(err, context.Canceled) {
					failed <- err
					return
				}
				fetches.EachRecord(func(record *kgo.Record) {
					select {
					case found <- string(record.Value):
					case <-ctx.Done():
					}
				})
			}
		}()
	}
	// A record may come to both when partitions move before a commit: the set counts.
	seen := map[string]bool{}
	for len(seen) < count {
		select {
		case value := <-found:
			seen[value] = true
		case err := <-failed:
			return nil, err
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d records came: %w", len(seen), count, ctx.Err())
		}
	}
	var all []string
	for value := range seen {
		all = append(all, value)
	}
	return sorted(all), nil
}

// franzTransactions copies a topic to another in a GroupTransactSession, with one abort on the way.
func franzTransactions(ctx context.Context, bootstrap, topic string) (map[string]any, error) {
	client, admin, err := franzCreate(ctx, bootstrap, topic)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	output := topic + "-copy"
	if _, err := admin.CreateTopic(ctx, partitions, 1, nil, output); err != nil {
		return nil, err
	}
	if err := franzProduce(ctx, client, topic, values(0, 30)); err != nil {
		return nil, err
	}
	group := topic + "-group"
	session, err := kgo.NewGroupTransactSession(kgo.SeedBrokers(bootstrap), kgo.ClientID("franz-go"),
		kgo.TransactionalID(topic+"-tx"), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.RequireStableFetchOffsets())
	if err != nil {
		return nil, err
	}
	defer session.Close()
	aborted, copied := 0, 0
	for copied < 30 {
		fetches := session.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		if fetches.NumRecords() == 0 {
			continue
		}
		if err := session.Begin(); err != nil {
			return nil, err
		}
		var records []*kgo.Record
		fetches.EachRecord(func(record *kgo.Record) {
			records = append(records, &kgo.Record{Topic: output, Key: record.Key, Value: record.Value})
		})
		if err := session.ProduceSync(ctx, records...).FirstErr(); err != nil {
			return nil, err
		}
		keep := aborted > 0
		committed, err := session.End(ctx, kgo.TransactionEndTry(keep))
		if err != nil {
			return nil, err
		}
		if committed {
			copied += len(records)
		} else {
			aborted += len(records)
		}
	}
	reader, err := franz(bootstrap, kgo.ConsumeTopics(output), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	found, err := franzPoll(ctx, reader, 30)
	if err != nil {
		return nil, err
	}
	return map[string]any{"values": found, "aborted": aborted > 0}, nil
}
