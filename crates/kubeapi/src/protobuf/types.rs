//! The fields of Kubernetes' built-in kinds, as their protobuf numbers them.
//!
//! Taken from the types of `k8s.io/api` and `k8s.io/apimachinery` 0.36, without what a server does
//! not read of a client (`status`, `managedFields`). Numbers are never given twice, so that bodies
//! of older and newer clients are read by the same table.

use std::collections::HashMap;
use std::sync::LazyLock;

/// Types: each field as `name=NUMBER`, how it is written, and its type. How it is written: nothing
/// for a value that is always sent, `*` for one that is sent if it is set, `[]` for a list, `{}`
/// for a map of texts, `+` for a message whose fields are those of the type. The types: `s` text,
/// `i` number, `b` flag, `y` bytes, `T` time, `I` number or text, `Q` quantity, others by name.
const TYPES: &str = "
AWSElasticBlockStoreVolumeSource: volumeID=1s fsType=2s partition=3i readOnly=4b
Affinity: nodeAffinity=1*NodeAffinity podAffinity=2*PodAffinity podAntiAffinity=3*PodAntiAffinity
AppArmorProfile: type=1s localhostProfile=2*s
AzureDiskVolumeSource: diskName=1s diskURI=2s cachingMode=3*s fsType=4*s readOnly=5*b kind=6*s
AzureFileVolumeSource: secretName=1s shareName=2s readOnly=3b
CSIVolumeSource: driver=1s readOnly=2*b fsType=3*s volumeAttributes=4{}s
    nodePublishSecretRef=5*LocalObjectReference
Capabilities: add=1[]s drop=2[]s
CephFSVolumeSource: monitors=1[]s path=2s user=3s secretFile=4s secretRef=5*LocalObjectReference
    readOnly=6b
CinderVolumeSource: volumeID=1s fsType=2s readOnly=3b secretRef=4*LocalObjectReference
ClientIPConfig: timeoutSeconds=1*i
ClusterTrustBundleProjection: name=1*s signerName=2*s labelSelector=3*LabelSelector optional=5*b
    path=4s
ConfigMap: metadata=1ObjectMeta immutable=4*b data=2{}s binaryData=3{}y
ConfigMapEnvSource: embedded=1+LocalObjectReference optional=2*b
ConfigMapKeySelector: embedded=1+LocalObjectReference key=2s optional=3*b
ConfigMapProjection: embedded=1+LocalObjectReference items=2[]KeyToPath optional=4*b
ConfigMapVolumeSource: embedded=1+LocalObjectReference items=2[]KeyToPath defaultMode=3*i
    optional=4*b
Container: name=1s image=2s command=3[]s args=4[]s workingDir=5s ports=6[]ContainerPort
    envFrom=19[]EnvFromSource env=7[]EnvVar resources=8ResourceRequirements
    resizePolicy=23[]ContainerResizePolicy restartPolicy=24*s
    restartPolicyRules=25[]ContainerRestartRule volumeMounts=9[]VolumeMount
    volumeDevices=21[]VolumeDevice livenessProbe=10*Probe readinessProbe=11*Probe
    startupProbe=22*Probe lifecycle=12*Lifecycle terminationMessagePath=13s
    terminationMessagePolicy=20s imagePullPolicy=14s securityContext=15*SecurityContext stdin=16b
    stdinOnce=17b tty=18b
ContainerPort: name=1s hostPort=2i containerPort=3i protocol=4s hostIP=5s
ContainerResizePolicy: resourceName=1s restartPolicy=2s
ContainerResourceMetricSource: name=1s target=2MetricTarget container=3s
ContainerRestartRule: action=1s exitCodes=2*ContainerRestartRuleOnExitCodes
ContainerRestartRuleOnExitCodes: operator=1s values=2[]i
CronJob: metadata=1ObjectMeta spec=2CronJobSpec
CronJobSpec: schedule=1s timeZone=8*s startingDeadlineSeconds=2*i concurrencyPolicy=3s suspend=4*b
    jobTemplate=5JobTemplateSpec successfulJobsHistoryLimit=6*i failedJobsHistoryLimit=7*i
CrossVersionObjectReference: kind=1s name=2s apiVersion=3s
DaemonSet: metadata=1ObjectMeta spec=2DaemonSetSpec
DaemonSetSpec: selector=1*LabelSelector template=2PodTemplateSpec
    updateStrategy=3DaemonSetUpdateStrategy minReadySeconds=4i revisionHistoryLimit=6*i
DaemonSetUpdateStrategy: type=1s rollingUpdate=2*RollingUpdateDaemonSet
DeleteOptions: gracePeriodSeconds=1*i preconditions=2*Preconditions orphanDependents=3*b
    propagationPolicy=4*s dryRun=5[]s ignoreStoreReadErrorWithClusterBreakingPotential=6*b
Deployment: metadata=1ObjectMeta spec=2DeploymentSpec
DeploymentSpec: replicas=1*i selector=2*LabelSelector template=3PodTemplateSpec
    strategy=4DeploymentStrategy minReadySeconds=5i revisionHistoryLimit=6*i paused=7b
    progressDeadlineSeconds=9*i
DeploymentStrategy: type=1s rollingUpdate=2*RollingUpdateDeployment
DownwardAPIProjection: items=1[]DownwardAPIVolumeFile
DownwardAPIVolumeFile: path=1s fieldRef=2*ObjectFieldSelector
    resourceFieldRef=3*ResourceFieldSelector mode=4*i
DownwardAPIVolumeSource: items=1[]DownwardAPIVolumeFile defaultMode=2*i
EmptyDirVolumeSource: medium=1s sizeLimit=2*Q
Endpoint: addresses=1[]s conditions=2EndpointConditions hostname=3*s targetRef=4*ObjectReference
    deprecatedTopology=5{}s nodeName=6*s zone=7*s hints=8*EndpointHints
EndpointConditions: ready=1*b serving=2*b terminating=3*b
EndpointHints: forZones=1[]ForZone forNodes=2[]ForNode
EndpointPort: name=1*s protocol=2*s port=3*i appProtocol=4*s
EndpointSlice: metadata=1ObjectMeta addressType=4s endpoints=2[]Endpoint ports=3[]EndpointPort
EnvFromSource: prefix=1s configMapRef=2*ConfigMapEnvSource secretRef=3*SecretEnvSource
EnvVar: name=1s value=2s valueFrom=3*EnvVarSource
EnvVarSource: fieldRef=1*ObjectFieldSelector resourceFieldRef=2*ResourceFieldSelector
    configMapKeyRef=3*ConfigMapKeySelector secretKeyRef=4*SecretKeySelector
    fileKeyRef=5*FileKeySelector
EphemeralContainer: embedded=1+EphemeralContainerCommon targetContainerName=2s
EphemeralContainerCommon: name=1s image=2s command=3[]s args=4[]s workingDir=5s
    ports=6[]ContainerPort envFrom=19[]EnvFromSource env=7[]EnvVar resources=8ResourceRequirements
    resizePolicy=23[]ContainerResizePolicy restartPolicy=24*s
    restartPolicyRules=25[]ContainerRestartRule volumeMounts=9[]VolumeMount
    volumeDevices=21[]VolumeDevice livenessProbe=10*Probe readinessProbe=11*Probe
    startupProbe=22*Probe lifecycle=12*Lifecycle terminationMessagePath=13s
    terminationMessagePolicy=20s imagePullPolicy=14s securityContext=15*SecurityContext stdin=16b
    stdinOnce=17b tty=18b
EphemeralVolumeSource: volumeClaimTemplate=1*PersistentVolumeClaimTemplate
Eviction: metadata=1ObjectMeta deleteOptions=2*DeleteOptions
ExecAction: command=1[]s
ExternalMetricSource: metric=1MetricIdentifier target=2MetricTarget
FCVolumeSource: targetWWNs=1[]s lun=2*i fsType=3s readOnly=4b wwids=5[]s
FieldSelectorAttributes: rawSelector=1s requirements=2[]FieldSelectorRequirement
FieldSelectorRequirement: key=1s operator=2s values=3[]s
FileKeySelector: volumeName=1s path=2s key=3s optional=4*b
FlexVolumeSource: driver=1s fsType=2s secretRef=3*LocalObjectReference readOnly=4b options=5{}s
FlockerVolumeSource: datasetName=1s datasetUUID=2s
ForNode: name=1s
ForZone: name=1s
GCEPersistentDiskVolumeSource: pdName=1s fsType=2s partition=3i readOnly=4b
GRPCAction: port=1i service=2*s
GitRepoVolumeSource: repository=1s revision=2s directory=3s
GlusterfsVolumeSource: endpoints=1s path=2s readOnly=3b
HPAScalingPolicy: type=1s value=2i periodSeconds=3i
HPAScalingRules: stabilizationWindowSeconds=3*i selectPolicy=1*s policies=2[]HPAScalingPolicy
    tolerance=4*Q
HTTPGetAction: path=1s port=2I host=3s scheme=4s httpHeaders=5[]HTTPHeader
HTTPHeader: name=1s value=2s
HorizontalPodAutoscaler: metadata=1ObjectMeta spec=2HorizontalPodAutoscalerSpec
HorizontalPodAutoscalerBehavior: scaleUp=1*HPAScalingRules scaleDown=2*HPAScalingRules
HorizontalPodAutoscalerSpec: scaleTargetRef=1CrossVersionObjectReference minReplicas=2*i
    maxReplicas=3i metrics=4[]MetricSpec behavior=5*HorizontalPodAutoscalerBehavior
autoscaling/v1/HorizontalPodAutoscaler: metadata=1ObjectMeta spec=2HorizontalPodAutoscalerV1Spec
HorizontalPodAutoscalerV1Spec: scaleTargetRef=1CrossVersionObjectReference minReplicas=2*i
    maxReplicas=3i targetCPUUtilizationPercentage=4*i
HostAlias: ip=1s hostnames=2[]s
HostPathVolumeSource: path=1s type=2*s
ISCSIVolumeSource: targetPortal=1s iqn=2s lun=3i iscsiInterface=4s fsType=5s readOnly=6b
    portals=7[]s chapAuthDiscovery=8b chapAuthSession=11b secretRef=10*LocalObjectReference
    initiatorName=12*s
ImageVolumeSource: reference=1s pullPolicy=2s
Job: metadata=1ObjectMeta spec=2JobSpec
JobSpec: parallelism=1*i completions=2*i activeDeadlineSeconds=3*i
    podFailurePolicy=11*PodFailurePolicy successPolicy=16*SuccessPolicy backoffLimit=7*i
    backoffLimitPerIndex=12*i maxFailedIndexes=13*i selector=4*LabelSelector manualSelector=5*b
    template=6PodTemplateSpec ttlSecondsAfterFinished=8*i completionMode=9*s suspend=10*b
    podReplacementPolicy=14*s managedBy=15*s
JobTemplateSpec: metadata=1ObjectMeta spec=2JobSpec
KeyToPath: key=1s path=2s mode=3*i
LabelSelector: matchLabels=1{}s matchExpressions=2[]LabelSelectorRequirement
LabelSelectorAttributes: rawSelector=1s requirements=2[]LabelSelectorRequirement
LabelSelectorRequirement: key=1s operator=2s values=3[]s
Lifecycle: postStart=1*LifecycleHandler preStop=2*LifecycleHandler stopSignal=3*s
LifecycleHandler: exec=1*ExecAction httpGet=2*HTTPGetAction tcpSocket=3*TCPSocketAction
    sleep=4*SleepAction
LocalObjectReference: name=1s
MetricIdentifier: name=1s selector=2*LabelSelector
MetricSpec: type=1s object=2*ObjectMetricSource pods=3*PodsMetricSource
    resource=4*ResourceMetricSource containerResource=7*ContainerResourceMetricSource
    external=5*ExternalMetricSource
MetricTarget: type=1s value=2*Q averageValue=3*Q averageUtilization=4*i
NFSVolumeSource: server=1s path=2s readOnly=3b
Namespace: metadata=1ObjectMeta spec=2NamespaceSpec
NamespaceSpec: finalizers=1[]s
NodeAffinity: requiredDuringSchedulingIgnoredDuringExecution=1*NodeSelector
    preferredDuringSchedulingIgnoredDuringExecution=2[]PreferredSchedulingTerm
NodeSelector: nodeSelectorTerms=1[]NodeSelectorTerm
NodeSelectorRequirement: key=1s operator=2s values=3[]s
NodeSelectorTerm: matchExpressions=1[]NodeSelectorRequirement
    matchFields=2[]NodeSelectorRequirement
NonResourceAttributes: path=1s verb=2s
ObjectFieldSelector: apiVersion=1s fieldPath=2s
ObjectMeta: name=1s generateName=2s namespace=3s selfLink=4s uid=5s resourceVersion=6s
    generation=7i creationTimestamp=8T deletionTimestamp=9*T deletionGracePeriodSeconds=10*i
    labels=11{}s annotations=12{}s ownerReferences=13[]OwnerReference finalizers=14[]s
ObjectMetricSource: describedObject=1CrossVersionObjectReference target=2MetricTarget
    metric=3MetricIdentifier
ObjectReference: kind=1s namespace=2s name=3s uid=4s apiVersion=5s resourceVersion=6s fieldPath=7s
OwnerReference: apiVersion=5s kind=1s name=3s uid=4s controller=6*b blockOwnerDeletion=7*b
PersistentVolumeClaim: metadata=1ObjectMeta spec=2PersistentVolumeClaimSpec
PersistentVolumeClaimSpec: accessModes=1[]s selector=4*LabelSelector
    resources=2VolumeResourceRequirements volumeName=3s storageClassName=5*s volumeMode=6*s
    dataSource=7*TypedLocalObjectReference dataSourceRef=8*TypedObjectReference
    volumeAttributesClassName=9*s
PersistentVolumeClaimTemplate: metadata=1ObjectMeta spec=2PersistentVolumeClaimSpec
PersistentVolumeClaimVolumeSource: claimName=1s readOnly=2b
PhotonPersistentDiskVolumeSource: pdID=1s fsType=2s
Pod: metadata=1ObjectMeta spec=2PodSpec
PodAffinity: requiredDuringSchedulingIgnoredDuringExecution=1[]PodAffinityTerm
    preferredDuringSchedulingIgnoredDuringExecution=2[]WeightedPodAffinityTerm
PodAffinityTerm: labelSelector=1*LabelSelector namespaces=2[]s topologyKey=3s
    namespaceSelector=4*LabelSelector matchLabelKeys=5[]s mismatchLabelKeys=6[]s
PodAntiAffinity: requiredDuringSchedulingIgnoredDuringExecution=1[]PodAffinityTerm
    preferredDuringSchedulingIgnoredDuringExecution=2[]WeightedPodAffinityTerm
PodCertificateProjection: signerName=1s keyType=2s maxExpirationSeconds=3*i
    credentialBundlePath=4s keyPath=5s certificateChainPath=6s userAnnotations=7{}s
PodDNSConfig: nameservers=1[]s searches=2[]s options=3[]PodDNSConfigOption
PodDNSConfigOption: name=1s value=2*s
PodDisruptionBudget: metadata=1ObjectMeta spec=2PodDisruptionBudgetSpec
PodDisruptionBudgetSpec: minAvailable=1*I selector=2*LabelSelector maxUnavailable=3*I
    unhealthyPodEvictionPolicy=4*s
PodFailurePolicy: rules=1[]PodFailurePolicyRule
PodFailurePolicyOnExitCodesRequirement: containerName=1*s operator=2s values=3[]i
PodFailurePolicyOnPodConditionsPattern: type=1s
PodFailurePolicyRule: action=1s onExitCodes=2*PodFailurePolicyOnExitCodesRequirement
    onPodConditions=3[]PodFailurePolicyOnPodConditionsPattern
PodOS: name=1s
PodReadinessGate: conditionType=1s
PodResourceClaim: name=1s resourceClaimName=3*s resourceClaimTemplateName=4*s
PodSchedulingGate: name=1s
PodSchedulingGroup: podGroupName=1*s
PodSecurityContext: seLinuxOptions=1*SELinuxOptions windowsOptions=8*WindowsSecurityContextOptions
    runAsUser=2*i runAsGroup=6*i runAsNonRoot=3*b supplementalGroups=4[]i
    supplementalGroupsPolicy=12*s fsGroup=5*i sysctls=7[]Sysctl fsGroupChangePolicy=9*s
    seccompProfile=10*SeccompProfile appArmorProfile=11*AppArmorProfile seLinuxChangePolicy=13*s
PodSpec: volumes=1[]Volume initContainers=20[]Container containers=2[]Container
    ephemeralContainers=34[]EphemeralContainer restartPolicy=3s terminationGracePeriodSeconds=4*i
    activeDeadlineSeconds=5*i dnsPolicy=6s nodeSelector=7{}s serviceAccountName=8s
    serviceAccount=9s automountServiceAccountToken=21*b nodeName=10s hostNetwork=11b hostPID=12b
    hostIPC=13b shareProcessNamespace=27*b securityContext=14*PodSecurityContext
    imagePullSecrets=15[]LocalObjectReference hostname=16s subdomain=17s affinity=18*Affinity
    schedulerName=19s tolerations=22[]Toleration hostAliases=23[]HostAlias priorityClassName=24s
    priority=25*i dnsConfig=26*PodDNSConfig readinessGates=28[]PodReadinessGate
    runtimeClassName=29*s enableServiceLinks=30*b preemptionPolicy=31*s overhead=32{}Q
    topologySpreadConstraints=33[]TopologySpreadConstraint setHostnameAsFQDN=35*b os=36*PodOS
    hostUsers=37*b schedulingGates=38[]PodSchedulingGate resourceClaims=39[]PodResourceClaim
    resources=40*ResourceRequirements hostnameOverride=41*s schedulingGroup=43*PodSchedulingGroup
PodTemplateSpec: metadata=1ObjectMeta spec=2PodSpec
PodsMetricSource: metric=1MetricIdentifier target=2MetricTarget
PortworxVolumeSource: volumeID=1s fsType=2s readOnly=3b
Preconditions: uid=1*s resourceVersion=2*s
PreferredSchedulingTerm: weight=1i preference=2NodeSelectorTerm
Probe: embedded=1+ProbeHandler initialDelaySeconds=2i timeoutSeconds=3i periodSeconds=4i
    successThreshold=5i failureThreshold=6i terminationGracePeriodSeconds=7*i
ProbeHandler: exec=1*ExecAction httpGet=2*HTTPGetAction tcpSocket=3*TCPSocketAction
    grpc=4*GRPCAction
ProjectedVolumeSource: sources=1[]VolumeProjection defaultMode=2*i
QuobyteVolumeSource: registry=1s volume=2s readOnly=3b user=4s group=5s tenant=6s
RBDVolumeSource: monitors=1[]s image=2s fsType=3s pool=4s user=5s keyring=6s
    secretRef=7*LocalObjectReference readOnly=8b
ResourceAttributes: namespace=1s verb=2s group=3s version=4s resource=5s subresource=6s name=7s
    fieldSelector=8*FieldSelectorAttributes labelSelector=9*LabelSelectorAttributes
ResourceClaim: name=1s request=2s
ResourceFieldSelector: containerName=1s resource=2s divisor=3Q
ResourceMetricSource: name=1s target=2MetricTarget
ResourceRequirements: limits=1{}Q requests=2{}Q claims=3[]ResourceClaim
RollingUpdateDaemonSet: maxUnavailable=1*I maxSurge=2*I
RollingUpdateDeployment: maxUnavailable=1*I maxSurge=2*I
RollingUpdateStatefulSetStrategy: partition=1*i maxUnavailable=2*I
SELinuxOptions: user=1s role=2s type=3s level=4s
Scale: metadata=1ObjectMeta spec=2ScaleSpec
ScaleIOVolumeSource: gateway=1s system=2s secretRef=3*LocalObjectReference sslEnabled=4b
    protectionDomain=5s storagePool=6s storageMode=7s volumeName=8s fsType=9s readOnly=10b
ScaleSpec: replicas=1i
SeccompProfile: type=1s localhostProfile=2*s
Secret: metadata=1ObjectMeta immutable=5*b data=2{}y stringData=4{}s type=3s
SecretEnvSource: embedded=1+LocalObjectReference optional=2*b
SecretKeySelector: embedded=1+LocalObjectReference key=2s optional=3*b
SecretProjection: embedded=1+LocalObjectReference items=2[]KeyToPath optional=4*b
SecretVolumeSource: secretName=1s items=2[]KeyToPath defaultMode=3*i optional=4*b
SecurityContext: capabilities=1*Capabilities privileged=2*b seLinuxOptions=3*SELinuxOptions
    windowsOptions=10*WindowsSecurityContextOptions runAsUser=4*i runAsGroup=8*i runAsNonRoot=5*b
    readOnlyRootFilesystem=6*b allowPrivilegeEscalation=7*b procMount=9*s
    seccompProfile=11*SeccompProfile appArmorProfile=12*AppArmorProfile
SelfSubjectAccessReview: metadata=1ObjectMeta spec=2SelfSubjectAccessReviewSpec
SelfSubjectAccessReviewSpec: resourceAttributes=1*ResourceAttributes
    nonResourceAttributes=2*NonResourceAttributes
SelfSubjectReview: metadata=1ObjectMeta
SelfSubjectRulesReview: metadata=1ObjectMeta spec=2SelfSubjectRulesReviewSpec
SelfSubjectRulesReviewSpec: namespace=1s
Service: metadata=1ObjectMeta spec=2ServiceSpec
ServiceAccount: metadata=1ObjectMeta secrets=2[]ObjectReference
    imagePullSecrets=3[]LocalObjectReference automountServiceAccountToken=4*b
ServiceAccountTokenProjection: audience=1s expirationSeconds=2*i path=3s
ServicePort: name=1s protocol=2s appProtocol=6*s port=3i targetPort=4I nodePort=5i
ServiceSpec: ports=1[]ServicePort selector=2{}s clusterIP=3s clusterIPs=18[]s type=4s
    externalIPs=5[]s sessionAffinity=7s loadBalancerIP=8s loadBalancerSourceRanges=9[]s
    externalName=10s externalTrafficPolicy=11s healthCheckNodePort=12i
    publishNotReadyAddresses=13b sessionAffinityConfig=14*SessionAffinityConfig ipFamilies=19[]s
    ipFamilyPolicy=17*s allocateLoadBalancerNodePorts=20*b loadBalancerClass=21*s
    internalTrafficPolicy=22*s trafficDistribution=23*s
SessionAffinityConfig: clientIP=1*ClientIPConfig
SleepAction: seconds=1i
StatefulSet: metadata=1ObjectMeta spec=2StatefulSetSpec
StatefulSetOrdinals: start=1i
StatefulSetPersistentVolumeClaimRetentionPolicy: whenDeleted=1s whenScaled=2s
StatefulSetSpec: replicas=1*i selector=2*LabelSelector template=3PodTemplateSpec
    volumeClaimTemplates=4[]PersistentVolumeClaim serviceName=5s podManagementPolicy=6s
    updateStrategy=7StatefulSetUpdateStrategy revisionHistoryLimit=8*i minReadySeconds=9i
    persistentVolumeClaimRetentionPolicy=10*StatefulSetPersistentVolumeClaimRetentionPolicy
    ordinals=11*StatefulSetOrdinals
StatefulSetUpdateStrategy: type=1s rollingUpdate=2*RollingUpdateStatefulSetStrategy
StorageOSVolumeSource: volumeName=1s volumeNamespace=2s fsType=3s readOnly=4b
    secretRef=5*LocalObjectReference
SuccessPolicy: rules=1[]SuccessPolicyRule
SuccessPolicyRule: succeededIndexes=1*s succeededCount=2*i
Sysctl: name=1s value=2s
TCPSocketAction: port=1I host=2s
Toleration: key=1s operator=2s value=3s effect=4s tolerationSeconds=5*i
TopologySpreadConstraint: maxSkew=1i topologyKey=2s whenUnsatisfiable=3s
    labelSelector=4*LabelSelector minDomains=5*i nodeAffinityPolicy=6*s nodeTaintsPolicy=7*s
    matchLabelKeys=8[]s
TypedLocalObjectReference: apiGroup=1*s kind=2s name=3s
TypedObjectReference: apiGroup=1*s kind=2s name=3s namespace=4*s
Volume: name=1s embedded=2+VolumeSource
VolumeDevice: name=1s devicePath=2s
VolumeMount: name=1s readOnly=2b recursiveReadOnly=7*s mountPath=3s subPath=4s
    mountPropagation=5*s subPathExpr=6s
VolumeProjection: secret=1*SecretProjection downwardAPI=2*DownwardAPIProjection
    configMap=3*ConfigMapProjection serviceAccountToken=4*ServiceAccountTokenProjection
    clusterTrustBundle=5*ClusterTrustBundleProjection podCertificate=6*PodCertificateProjection
VolumeResourceRequirements: limits=1{}Q requests=2{}Q
VolumeSource: hostPath=1*HostPathVolumeSource emptyDir=2*EmptyDirVolumeSource
    gcePersistentDisk=3*GCEPersistentDiskVolumeSource
    awsElasticBlockStore=4*AWSElasticBlockStoreVolumeSource gitRepo=5*GitRepoVolumeSource
    secret=6*SecretVolumeSource nfs=7*NFSVolumeSource iscsi=8*ISCSIVolumeSource
    glusterfs=9*GlusterfsVolumeSource persistentVolumeClaim=10*PersistentVolumeClaimVolumeSource
    rbd=11*RBDVolumeSource flexVolume=12*FlexVolumeSource cinder=13*CinderVolumeSource
    cephfs=14*CephFSVolumeSource flocker=15*FlockerVolumeSource
    downwardAPI=16*DownwardAPIVolumeSource fc=17*FCVolumeSource azureFile=18*AzureFileVolumeSource
    configMap=19*ConfigMapVolumeSource vsphereVolume=20*VsphereVirtualDiskVolumeSource
    quobyte=21*QuobyteVolumeSource azureDisk=22*AzureDiskVolumeSource
    photonPersistentDisk=23*PhotonPersistentDiskVolumeSource projected=26*ProjectedVolumeSource
    portworxVolume=24*PortworxVolumeSource scaleIO=25*ScaleIOVolumeSource
    storageos=27*StorageOSVolumeSource csi=28*CSIVolumeSource ephemeral=29*EphemeralVolumeSource
    image=30*ImageVolumeSource
VsphereVirtualDiskVolumeSource: volumePath=1s fsType=2s storagePolicyName=3s storagePolicyID=4s
WeightedPodAffinityTerm: weight=1i podAffinityTerm=2PodAffinityTerm
WindowsSecurityContextOptions: gmsaCredentialSpecName=1*s gmsaCredentialSpec=2*s runAsUserName=3*s
    hostProcess=4*b
";

/// How a field is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Always sent: a zero means that it is not set.
    Value,
    /// Sent if it is set.
    Optional,
    List,
    Map,
    /// A message whose fields are those of the type that it is in.
    Embedded,
}

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Text,
    Number,
    Flag,
    Bytes,
    Time,
    NumberOrText,
    Quantity,
    Message(&'static str),
}

/// A field of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) number: u64,
    pub(super) form: Form,
    pub(super) of: Type,
}

static TABLE: LazyLock<HashMap<&'static str, Vec<Field>>> = LazyLock::new(|| {
    let mut table: HashMap<&str, Vec<Field>> = HashMap::new();
    let mut name = "";
    for line in TYPES.lines() {
        let words = match line.split_once(": ") {
            Some((head, words)) => {
                name = head;
                words
            }
            None => line,
        };
        let fields = words.split_whitespace().map(|it| field(it).expect("the table is whole"));
        table.entry(name).or_default().extend(fields);
    }
    table
});

/// The fields of a type, if there is one of that name.
pub(super) fn fields(name: &str) -> Option<&'static [Field]> {
    TABLE.get(name).map(Vec::as_slice)
}

fn field(word: &'static str) -> Option<Field> {
    let (name, rest) = word.split_once('=')?;
    let (number, rest) = rest.split_at(rest.find(|it: char| !it.is_ascii_digit())?);
    let forms =
        [("*", Form::Optional), ("[]", Form::List), ("{}", Form::Map), ("+", Form::Embedded)];
    let written = forms.iter().find_map(|(sign, form)| Some((*form, rest.strip_prefix(sign)?)));
    let (form, of) = written.unwrap_or((Form::Value, rest));
    let of = match of {
        "s" => Type::Text,
        "i" => Type::Number,
        "b" => Type::Flag,
        "y" => Type::Bytes,
        "T" => Type::Time,
        "I" => Type::NumberOrText,
        "Q" => Type::Quantity,
        other => Type::Message(other),
    };
    Some(Field { name, number: number.parse().ok()?, form, of })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How deep a type goes; every type that is named is there, and none holds itself.
    fn depth(name: &str, above: &[&str]) -> usize {
        assert!(!above.contains(&name), "{name} is in itself: {above:?}");
        let above = [above, &[name]].concat();
        let below = fields(name).unwrap_or_else(|| panic!("{name} is there")).iter();
        let below = below.filter_map(|it| match it.of {
            Type::Message(name) => Some(depth(name, &above)),
            _ => None,
        });
        1 + below.max().unwrap_or_default()
    }

    #[test]
    fn the_table_is_whole_and_no_type_is_in_itself() {
        let kinds = ["CronJob", "Deployment", "EndpointSlice", "HorizontalPodAutoscaler"];
        let others = ["DeleteOptions", "Eviction", "Scale", "SelfSubjectAccessReview"];
        let more = ["autoscaling/v1/HorizontalPodAutoscaler", "SelfSubjectReview"];
        let rules = ["SelfSubjectRulesReview"];
        for kind in kinds.into_iter().chain(others).chain(more).chain(rules) {
            assert!(depth(kind, &[]) < 20, "{kind}");
        }
        for (name, fields) in TABLE.iter().filter(|(name, _)| !name.is_empty()) {
            let mut numbers: Vec<u64> = fields.iter().map(|it| it.number).collect();
            numbers.sort_unstable();
            numbers.dedup();
            assert_eq!(numbers.len(), fields.len(), "{name}: a number is given twice");
        }
    }
}
