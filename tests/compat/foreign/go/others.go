package main

import (
	"context"
	"fmt"
	"time"

	"github.com/IBM/sarama"
	"github.com/segmentio/kafka-go"
)

func saramaConfig() *sarama.Config {
	config := sarama.NewConfig()
	config.ClientID = "sarama"
	config.Version = sarama.MaxVersion
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	return config
}

func saramaCreate(bootstrap, topic string) error {
	admin, err := sarama.NewClusterAdmin([]string{bootstrap}, saramaConfig())
	if err != nil {
		return err
	}
	defer admin.Close()
	return admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1}, false)
}

func saramaProduce(bootstrap, topic string, config *sarama.Config, values []string) error {
	producer, err := sarama.NewSyncProducer([]string{bootstrap}, config)
	if err != nil {
		return err
	}
	defer producer.Close()
	for _, value := range values {
		message := &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(value)}
		if _, _, err := producer.SendMessage(message); err != nil {
			return err
		}
	}
	return nil
}

func saramaRead(ctx context.Context, bootstrap, topic string, config *sarama.Config, count int) ([]string, error) {
	consumer, err := sarama.NewConsumer([]string{bootstrap}, config)
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	partition, err := consumer.ConsumePartition(topic, 0, sarama.OffsetOldest)
	if err != nil {
		return nil, err
	}
	defer partition.Close()
	var found []string
	for len(found) < count {
		select {
		case message := <-partition.Messages():
			found = append(found, string(message.Value))
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d records came", len(found), count)
		}
	}
	return found, nil
}

func saramaPlain(ctx context.Context, bootstrap, topic string) (map[string]any, error) {
	if err := saramaCreate(bootstrap, topic); err != nil {
		return nil, err
	}
	codecs := []sarama.CompressionCodec{
		sarama.CompressionNone, sarama.CompressionGZIP, sarama.CompressionSnappy, sarama.CompressionLZ4, sarama.CompressionZSTD,
	}
	for number, codec := range codecs {
		config := saramaConfig()
		config.Producer.Compression = codec
		if err := saramaProduce(bootstrap, topic, config, values(number*10, number*10+10)); err != nil {
			return nil, err
		}
	}
	found, err := saramaRead(ctx, bootstrap, topic, saramaConfig(), 50)
	if err != nil {
		return nil, err
	}
	// A client told to be an old one speaks that age's versions.
	old := saramaConfig()
	old.Version = sarama.V0_11_0_0
	again, err := saramaRead(ctx, bootstrap, topic, old, 50)
	return map[string]any{"values": found, "by_old": again}, err
}

type saramaHandler struct{ found chan string }

func (saramaHandler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (saramaHandler) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (handler saramaHandler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			session.MarkMessage(message, "")
			handler.found <- string(message.Value)
		case <-session.Context().Done():
			return nil
		}
	}
}

// saramaMember reads count records as the only member of a group and commits each.
func saramaMember(ctx context.Context, bootstrap, topic string, count int) ([]string, error) {
	group, err := sarama.NewConsumerGroup([]string{bootstrap}, topic+"-group", saramaConfig())
	if err != nil {
		return nil, err
	}
	defer group.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	handler := saramaHandler{make(chan string, count)}
	failed := make(chan error, 1)
	go func() { failed <- group.Consume(ctx, []string{topic}, handler) }()
	var found []string
	for len(found) < count {
		select {
		case value := <-handler.found:
			found = append(found, value)
		case err := <-failed:
			return nil, fmt.Errorf("the session ended after %d of %d records: %v", len(found), count, err)
		}
	}
	return found, nil
}

func saramaGroup(ctx context.Context, bootstrap, topic string) (map[string]any, error) {
	if err := saramaCreate(bootstrap, topic); err != nil {
		return nil, err
	}
	if err := saramaProduce(bootstrap, topic, saramaConfig(), values(0, 20)); err != nil {
		return nil, err
	}
	early, err := saramaMember(ctx, bootstrap, topic, 20)
	if err != nil {
		return nil, err
	}
	if err := saramaProduce(bootstrap, topic, saramaConfig(), values(20, 30)); err != nil {
		return nil, err
	}
	late, err := saramaMember(ctx, bootstrap, topic, 10)
	return map[string]any{"early": early, "late": late}, err
}

func saramaTransaction(ctx context.Context, bootstrap, topic string) (map[string]any, error) {
	if err := saramaCreate(bootstrap, topic); err != nil {
		return nil, err
	}
	config := saramaConfig()
	config.Producer.Idempotent = true
	config.Producer.Transaction.ID = topic + "-tx"
	config.Net.MaxOpenRequests = 1
	producer, err := sarama.NewSyncProducer([]string{bootstrap}, config)
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	for number := range 3 {
		if err := producer.BeginTxn(); err != nil {
			return nil, err
		}
		for _, value := range values(number*10, number*10+10) {
			message := &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(value)}
			if _, _, err := producer.SendMessage(message); err != nil {
				return nil, err
			}
		}
		end := producer.CommitTxn
		if number == 1 {
			end = producer.AbortTxn
		}
		if err := end(); err != nil {
			return nil, err
		}
	}
	reading := saramaConfig()
	reading.Consumer.IsolationLevel = sarama.ReadCommitted
	found, err := saramaRead(ctx, bootstrap, topic, reading, 20)
	return map[string]any{"values": found}, err
}

func kafkaGo(ctx context.Context, bootstrap, topic string) (map[string]any, error) {
	dialer := &kafka.Dialer{ClientID: "kafka-go", Timeout: deadline}
	connection, err := dialer.DialContext(ctx, "tcp", bootstrap)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	if err := connection.CreateTopics(kafka.TopicConfig{Topic: topic, NumPartitions: 1, ReplicationFactor: 1}); err != nil {
		return nil, err
	}
	writer := &kafka.Writer{
		Addr: kafka.TCP(bootstrap), Topic: topic, RequiredAcks: kafka.RequireAll, Compression: kafka.Zstd,
		BatchTimeout: 5 * time.Millisecond, Transport: &kafka.Transport{ClientID: "kafka-go"},
	}
	defer writer.Close()
	var messages []kafka.Message
	for _, value := range values(0, 30) {
		messages = append(messages, kafka.Message{Value: []byte(value)})
	}
	if err := writer.WriteMessages(ctx, messages...); err != nil {
		return nil, err
	}
	read := func(count int) ([]string, error) {
		reader := kafka.NewReader(kafka.ReaderConfig{
			Brokers: []string{bootstrap}, GroupID: topic + "-group", Topic: topic, Dialer: dialer,
			MaxWait: 100 * time.Millisecond, StartOffset: kafka.FirstOffset,
		})
		defer reader.Close()
		var found []string
		for range count {
			message, err := reader.ReadMessage(ctx) // commits it
			if err != nil {
				return nil, fmt.Errorf("after %d of %d records: %w", len(found), count, err)
			}
			found = append(found, string(message.Value))
		}
		return found, nil
	}
	early, err := read(20)
	if err != nil {
		return nil, err
	}
	late, err := read(10)
	return map[string]any{"early": early, "late": late}, err
}
