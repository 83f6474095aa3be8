package grpcedge

import (
	_ "embed"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	_ "pipeline/gateway/pipelinepb" // described as well
)

// services says which there are: those of the servers, and our own.
type services []string

// GetServiceInfo is asked by reflection, for the names alone.
func (s services) GetServiceInfo() map[string]grpc.ServiceInfo {
	found := map[string]grpc.ServiceInfo{
		healthpb.Health_ServiceDesc.ServiceName:                    {},
		reflectionv1.ServerReflection_ServiceDesc.ServiceName:      {},
		reflectionv1alpha.ServerReflection_ServiceDesc.ServiceName: {},
	}
	for _, name := range s {
		found[name] = grpc.ServiceInfo{}
	}
	return found
}

//go:embed inference_v2.binpb
var v2Messages []byte

// descriptors finds what is linked into the program, and the messages of the v2 protocol, which nobody here
// reads.
type descriptors struct{ v2 *protoregistry.Files }

func newDescriptors() descriptors {
	var files descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(v2Messages, &files); err != nil {
		panic(err) // it was built so
	}
	found, err := protodesc.NewFiles(&files)
	if err != nil {
		panic(err)
	}
	return descriptors{found}
}

func (d descriptors) FindFileByPath(path string) (protoreflect.FileDescriptor, error) {
	if found, err := d.v2.FindFileByPath(path); err == nil {
		return found, nil
	}
	return protoregistry.GlobalFiles.FindFileByPath(path)
}

func (d descriptors) FindDescriptorByName(name protoreflect.FullName) (protoreflect.Descriptor, error) {
	if found, err := d.v2.FindDescriptorByName(name); err == nil {
		return found, nil
	}
	return protoregistry.GlobalFiles.FindDescriptorByName(name)
}

// addReflection serves both versions of it.
func addReflection(server grpc.ServiceRegistrar, names []string) {
	options := reflection.ServerOptions{Services: services(names), DescriptorResolver: newDescriptors()}
	reflectionv1.RegisterServerReflectionServer(server, reflection.NewServerV1(options))
	reflectionv1alpha.RegisterServerReflectionServer(server, reflection.NewServer(options))
}

// endReflection ends reflection's streams when the edge stops: a caller may keep one open forever.
func (s *Server) endReflection(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if !strings.HasPrefix(info.FullMethod, "/grpc.reflection.") {
		return next(service, stream)
	}
	ended := make(chan error, 1)
	go func() { ended <- next(service, stream) }()
	select {
	case err := <-ended:
		return err
	case <-s.stopping.Done():
		return status.Error(codes.Unavailable, textStopped)
	}
}
